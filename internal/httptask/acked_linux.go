package httptask

import (
	"net"

	"github.com/callq/callq/internal/limit"
	"golang.org/x/sys/unix"
)

// limitResends has the kernel end the connection where what was written is not acknowledged: what it sends again it
// sends within limit.ResendMost, even where this process is stopped or gone. See TCP_USER_TIMEOUT in tcp(7).
func limitResends(conn *net.TCPConn) error {
	return withSocket(conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.ResendMost.Milliseconds()))
	})
}

// unacked is how many bytes of what was written the other side has not acknowledged: SIOCOUTQ, see tcp(7).
func unacked(conn *net.TCPConn) (n int, err error) {
	err = withSocket(conn, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return n, err
}

func withSocket(conn *net.TCPConn, ask func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if closed := raw.Control(func(fd uintptr) { err = ask(int(fd)) }); closed != nil {
		return closed
	}
	return err
}
