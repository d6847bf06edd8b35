package chain

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"glasshouse/fault"
)

// A Head is the content of a checkpoint: the number of entries and the root hash of the tree.
type Head struct {
	Size int64
	Root Hash
}

// sign returns the signed checkpoint of a tree.
func (k *Key) sign(h Head) (Checkpoint, error) {
	msg, err := note.Sign(&note.Note{Text: h.text(k.signer.Name())}, k.signer)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("sign a checkpoint: %w", err)
	}
	return Checkpoint{Size: h.Size, Note: string(msg)}, nil
}

func (h Head) text(origin string) string {
	return fmt.Sprintf("%s\n%d\n%s\n", origin, h.Size, base64.StdEncoding.EncodeToString(h.Root[:]))
}

// Open verifies that p's key has signed a checkpoint, and returns its content. The checkpoint
// may have other signatures as well.
func (p PublicKey) Open(text string) (Head, error) {
	h, _, err := p.open(text)
	return h, err
}

// openOwn is like Open, but also requires that the checkpoint is byte for byte as its signer wrote
// it.
func (p PublicKey) openOwn(text string) (Head, error) {
	h, n, err := p.open(text)
	if err != nil {
		return h, err
	}
	own := n.Text + "\n— " + n.Sigs[0].Name + " " + n.Sigs[0].Base64 + "\n"
	sig, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	if err != nil || own != text || n.Text != h.text(p.verifier.Name()) || base64.StdEncoding.EncodeToString(sig) != n.Sigs[0].Base64 {
		return h, errors.New("the checkpoint was changed after it was signed")
	}
	return h, nil
}

func (p PublicKey) open(text string) (Head, *note.Note, error) {
	n, err := note.Open([]byte(text), note.VerifierList(p.verifier))
	if err != nil {
		if _, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
			err = fmt.Errorf("the checkpoint is not signed by %s", p.text)
		}
		return Head{}, nil, fault.Newf(fault.Invalid, "chain.Open", "", "not a checkpoint of this chain: %w", err)
	}
	h, err := parseHead(n.Text, p.verifier.Name())
	if err != nil {
		return Head{}, nil, fault.Newf(fault.Invalid, "chain.Open", "", "not a checkpoint: %w", err)
	}
	return h, n, nil
}

// parseHead parses the text of a checkpoint. It ignores extension lines after the three
// mandatory ones (C2SP tlog-checkpoint).
func parseHead(text, origin string) (h Head, err error) {
	lines := strings.SplitN(text, "\n", 4)
	if len(lines) < 4 || lines[0] != origin {
		return h, fmt.Errorf("expected a checkpoint with the origin %s", origin)
	}
	h.Size, err = strconv.ParseInt(lines[1], 10, 64)
	if err != nil || h.Size <= 0 || h.Size > maxSeq || strconv.FormatInt(h.Size, 10) != lines[1] {
		return h, fmt.Errorf("%.40q is not a number of entries", lines[1])
	}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != len(h.Root) || base64.StdEncoding.EncodeToString(root) != lines[2] {
		return h, fmt.Errorf("%.80q is not a hash", lines[2])
	}
	copy(h.Root[:], root)
	return h, nil
}
