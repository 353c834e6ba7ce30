package local

import (
	"os/user"
	"strconv"
	"syscall"
)

func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// inNamespace is root seen from inside as nobody, which is all that Postgres asks for; files are
// root's own. It needs no right to change users, and sees folders that no other user may.
func inNamespace() (identity, bool) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return identity{}, false
	}
	uid, errUID := strconv.Atoi(nobody.Uid)
	gid, errGID := strconv.Atoi(nobody.Gid)
	if errUID != nil || errGID != nil {
		return identity{}, false
	}
	return identity{name: "root in a user namespace", attr: syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: 0, Size: 1}},
		Credential:  &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true},
	}}, true
}
