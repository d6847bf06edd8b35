package wasi

// Rights are deprecated in preview 1, and programs must not rely on removing them. The
// reported rights state whether a file can be read, written and seeked. A directory reports
// all rights.
const (
	rightDatasync uint64 = 1 << iota
	rightRead
	rightSeek
	rightSetFlags
	rightSync
	rightTell
	rightWrite
	rightAdvise
	rightAllocate
	rightCreateDirectory
	rightCreateFile
	rightLinkSource
	rightLinkTarget
	rightOpen
	rightReaddir
	rightReadlink
	rightRenameSource
	rightRenameTarget
	rightPathFilestatGet
	_ // the size is set by descriptor only
	rightPathSetTimes
	rightFilestatGet
	rightSetSize
	rightSetTimes
	rightSymlink
	rightRemoveDirectory
	rightUnlink
	rightPoll
)

const (
	rightsOfReading   = rightRead | rightPoll
	rightsOfWriting   = rightWrite | rightDatasync | rightSync | rightAllocate | rightSetSize | rightPoll
	rightsOfFiles     = rightSeek | rightTell | rightAdvise | rightSetFlags | rightFilestatGet | rightSetTimes
	rightsOfDirectory = rightSync | rightDatasync | rightSetFlags | rightCreateDirectory | rightCreateFile | rightLinkSource | rightLinkTarget |
		rightOpen | rightReaddir | rightReadlink | rightRenameSource | rightRenameTarget | rightPathFilestatGet | rightPathSetTimes |
		rightFilestatGet | rightSetTimes | rightSymlink | rightRemoveDirectory | rightUnlink
	rightsBelow = rightsOfDirectory | rightsOfFiles | rightsOfReading | rightsOfWriting
)

// rights returns the rights of a descriptor, and the rights of files that are opened through
// it.
func (f *file) rights() (base, inheriting uint64) {
	switch {
	case f.kind == directory:
		return rightsOfDirectory, rightsBelow
	case f.stream():
		base = rightFilestatGet | rightSetFlags
	default:
		base = rightsOfFiles
	}
	if f.read {
		base |= rightsOfReading
	}
	if f.write {
		base |= rightsOfWriting
	}
	return base, 0
}
