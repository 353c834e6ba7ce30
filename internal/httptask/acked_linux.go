package httptask

import (
	"net"

	"github.com/callq/callq/internal/limit"
	"golang.org/x/sys/unix"
)

// limitResends has the kernel end the connection where what was written is not acknowledged: what it sends again it
// sends within limit.ResendMost, even where this process is stopped or gone. See TCP_USER_TIMEOUT in tcp(7).
func limitResends(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.ResendMost.Milliseconds()))
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// unacked is how many bytes of what was written the other side has not acknowledged: SIOCOUTQ, see tcp(7).
func unacked(conn *net.TCPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}
