package wasi

// Rights were given up by the makers of preview 1, and no program may count on
// losing one. Descriptors still say what they are for: whether they read, write
// and seek, and that in a directory everything can be tried.
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

// rights are what a descriptor is for, and what those opened through it may be for.
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
