package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// users are those of a file, which is read again when it changes.
type users struct {
	path string

	mu      sync.Mutex
	read    os.FileInfo
	known   map[string]user
	checked map[[sha256.Size]byte]time.Time // logins that were right, until when they need no check

	comparing chan struct{} // comparing a password takes a core for a tenth of a second: one at a time
}

type user struct {
	hash []byte
	role Role
}

const (
	rememberedFor = 5 * time.Minute
	mostUsers     = 10_000
)

func newUsers(path string) (*users, error) {
	u := &users{path: path, checked: map[[sha256.Size]byte]time.Time{}, comparing: make(chan struct{}, 1)}
	return u, u.refresh()
}

// refresh reads the file if it has changed. A file that cannot be read leaves the former users in force.
func (u *users) refresh() error {
	info, err := os.Stat(u.path)
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	if u.read != nil && info.ModTime().Equal(u.read.ModTime()) && info.Size() == u.read.Size() {
		return nil
	}
	text, err := os.ReadFile(u.path)
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	known, err := readUsers(text)
	if err != nil {
		return fmt.Errorf("users: %s: %w", u.path, err)
	}
	u.read, u.known = info, known
	clear(u.checked)
	return nil
}

// readUsers reads lines of the form
//
//	name:hash:role
//
// as `htpasswd -B` writes them, with a role behind; without one the user is a viewer. Empty lines and those that begin with # do
// not count.
func readUsers(text []byte) (map[string]user, error) {
	known := map[string]user{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 2 || fields[0] == "" {
			return nil, fmt.Errorf("line %d is not name:hash:role", n)
		}
		one := user{hash: []byte(fields[1]), role: Viewer}
		if _, err := bcrypt.Cost(one.hash); err != nil {
			return nil, fmt.Errorf("line %d: the hash is not of bcrypt: write it with htpasswd -B", n)
		}
		if len(fields) == 3 && fields[2] != "" {
			var err error
			if one.role, err = ParseRole(fields[2]); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		}
		if _, twice := known[fields[0]]; twice || len(known) == mostUsers {
			return nil, fmt.Errorf("line %d: user %s is there twice, or there are more than %d users", n, fields[0], mostUsers)
		}
		known[fields[0]] = one
	}
	return known, lines.Err()
}

var errPassword = errors.New("the name or the password is wrong")

// check tells who logs in with a name and a password.
func (u *users) check(ctx context.Context, name, password string) (Who, error) {
	login := sha256.Sum256([]byte(name + "\x00" + password))
	one, known, remembered := u.find(name, login)
	if remembered {
		return Who{name, one.role}, nil
	}
	select {
	case u.comparing <- struct{}{}:
		defer func() { <-u.comparing }()
	case <-ctx.Done():
		return Who{}, errPassword
	}
	if err := bcrypt.CompareHashAndPassword(one.hash, []byte(password)); err != nil || !known {
		return Who{}, errPassword
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now, ok := u.known[name]; ok && bytes.Equal(now.hash, one.hash) {
		u.checked[login] = time.Now().Add(rememberedFor)
	}
	return Who{name, one.role}, nil
}

func (u *users) find(name string, login [sha256.Size]byte) (one user, known, remembered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.refresh() // those that were read before stay
	if one, known = u.known[name]; !known {
		for _, one = range u.known { // is compared with, so that the time tells nobody who there is
			break
		}
	}
	return one, known, known && time.Now().Before(u.checked[login])
}
