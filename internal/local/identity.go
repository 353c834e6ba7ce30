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
	cmd.Dir, cmd.SysProcAttr = dir, &id.attr
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
func identities() (list []identity) {
	if os.Geteuid() != 0 {
		return []identity{{name: "this user", uid: os.Geteuid(), gid: os.Getegid()}}
	}
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
		as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		id := identity{name: name, uid: int(uid), gid: int(gid), attr: syscall.SysProcAttr{Credential: as}}
		list = append(list, id)
		if root, ok := inNamespace(id); ok && name == "nobody" {
			list = append(list, root)
		}
	}
	return list
}
