package object

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"

	"glasshouse/fault"
)

// PutSealed is like PutFrom, but encrypts the data. The data contains the key of the object, so that
// no object can be exchanged for another. Both halves of identity are secret: a process with the
// recipient can make an object that ReadSealed accepts.
func PutSealed(ctx context.Context, s Store, key string, identity *age.X25519Identity, write func(io.Writer) error) error {
	return PutFrom(ctx, s, key, func(w io.Writer) error {
		sealed, err := age.Encrypt(w, identity.Recipient())
		if err != nil {
			return fmt.Errorf("encrypt object %s: %w", key, err)
		}
		if _, err := io.WriteString(sealed, key+"\n"); err != nil {
			return err
		}
		if err := write(sealed); err != nil {
			return err
		}
		return sealed.Close()
	})
}

// ReadSealed calls read with the data of an object that PutSealed has stored. It returns
// fault.Invalid if the object is damaged, as read should. If the transfer has failed, it returns that
// error instead.
func ReadSealed(ctx context.Context, s Store, key string, identity *age.X25519Identity, read func(io.Reader) error) error {
	stored, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	defer stored.Close()
	err = unseal(stored, key, identity, read)
	if !errors.Is(err, fault.Invalid) {
		return err
	}
	// Checksums are verified at the end of an object.
	if _, failed := io.Copy(io.Discard, stored); failed != nil {
		return failed
	}
	return err
}

func unseal(stored io.Reader, key string, identity *age.X25519Identity, read func(io.Reader) error) error {
	damaged := func(err error) error {
		return fault.New(fault.Invalid, "object.ReadSealed", key, fmt.Errorf("the object is damaged, or was encrypted with another key: %w", err))
	}
	plain, err := age.Decrypt(stored, identity)
	if err != nil {
		return damaged(err)
	}
	text := bufio.NewReaderSize(plain, 64<<10)
	name, err := text.ReadSlice('\n')
	if err != nil {
		return damaged(err)
	}
	if string(name) != key+"\n" {
		return damaged(errors.New("it is another object"))
	}
	return read(text)
}
