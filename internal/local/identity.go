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

func (id identity) apply(cmd *exec.Cmd) {
	attr := id.attr
	cmd.SysProcAttr = &attr
}

// identities lists whom to try, in order.
func identities() []identity {
	if os.Geteuid() != 0 {
		return []identity{{name: "this user", uid: os.Geteuid(), gid: os.Getegid()}}
	}
	var list []identity
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if errUID != nil || errGID != nil {
			continue
		}
		list = append(list, identity{name: name, uid: int(uid), gid: int(gid), attr: syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		}})
	}
	if id, ok := inNamespace(); ok {
		list = append(list, id)
	}
	return list
}

// chooseIdentity gives dir to the first identity that can work in it and run what is in p.
func chooseIdentity(ctx context.Context, p program, dir string) (identity, error) {
	var tried []error
	for _, id := range identities() {
		err := giveTo(id, dir)
		if err == nil {
			cmd := p.command(ctx, "postgres", "--version")
			cmd.Dir = dir
			id.apply(cmd)
			err = cmd.Run()
		}
		if err == nil {
			return id, nil
		}
		tried = append(tried, fmt.Errorf("as %s: %w", id.name, err))
	}
	return identity{}, fmt.Errorf("run in %s: %w", dir, errors.Join(tried...))
}

// giveTo makes id the owner of dir and what is in it.
func giveTo(id identity, dir string) error {
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
