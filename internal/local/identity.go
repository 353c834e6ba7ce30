package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// identity is a user that Postgres, which refuses to run as root, can run as.
type identity struct {
	name     string
	uid, gid int // who owns its files
	attr     syscall.SysProcAttr
}

// command is p.Command in dir, run as this user.
func (id identity) command(ctx context.Context, p Program, dir, binary string, args ...string) *exec.Cmd {
	cmd := p.Command(ctx, binary, args...)
	cmd.Dir = dir
	attr := id.attr
	cmd.SysProcAttr = &attr
	return cmd
}

// own makes this user the owner of dir and what is in it.
func (id identity) own(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) == id.uid {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id.uid, id.gid)
	})
}

// chooseIdentity gives dir to the first user who can work in it and run Postgres.
func chooseIdentity(ctx context.Context, p Program, dir string) (identity, error) {
	var tried []error
	for _, id := range identities() {
		err := id.own(dir)
		if err == nil {
			err = id.command(ctx, p, dir, "postgres", "--version").Run()
		}
		if err == nil {
			return id, nil
		}
		tried = append(tried, fmt.Errorf("as %s: %w", id.name, err))
	}
	return identity{}, fmt.Errorf("run in %s: %w", dir, errors.Join(tried...))
}

// identities lists the users to try, in order.
func identities() []identity {
	if os.Geteuid() != 0 {
		return []identity{{name: "this user", uid: os.Geteuid(), gid: os.Getegid()}}
	}
	var list []identity
	for _, name := range []string{"postgres", "nobody"} {
		if id, err := ofUser(name); err == nil {
			list = append(list, id)
		}
	}
	if id, err := inNamespace(); err == nil {
		list = append(list, id)
	}
	return list
}

func ofUser(name string) (identity, error) {
	found, err := user.Lookup(name)
	if err != nil {
		return identity{}, err
	}
	uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
	return identity{name: name, uid: int(uid), gid: int(gid), attr: syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
	}}, errors.Join(errUID, errGID)
}
