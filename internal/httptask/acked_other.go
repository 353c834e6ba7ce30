//go:build !linux

package httptask

import (
	"errors"
	"net"
)

func limitResends(*net.TCPConn) error { return nil }

func unacked(*net.TCPConn) (int, error) { return 0, errors.ErrUnsupported }
