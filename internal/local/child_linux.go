package local

import "syscall"

func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// inNamespace makes of nobody root, who inside a user namespace looks like nobody: that satisfies Postgres. The
// files are root's. It needs no right to change users, and works in folders that only root may enter.
func inNamespace(nobody identity) (identity, bool) {
	return identity{name: "root in a user namespace", attr: syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody.uid, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: nobody.gid, HostID: 0, Size: 1}},
		Credential:  &syscall.Credential{Uid: nobody.attr.Credential.Uid, Gid: nobody.attr.Credential.Gid, NoSetGroups: true},
	}}, true
}
