package httptask

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// readHeader reads the headers, and which secrets are among their values.
func readHeader(value json.RawMessage, s secrets) (header http.Header, used []string, err error) {
	object, err := readObject(value)
	if err != nil {
		return nil, nil, err
	}
	header = http.Header{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := checkName(name); err != nil {
			return nil, nil, fmt.Errorf("%q: %w", name, err)
		}
		for _, element := range elements(object[name]) {
			text, secret, err := readHeaderValue(element, s)
			if err != nil {
				return nil, nil, fmt.Errorf("%q: %w", name, err)
			}
			if secret != "" {
				used = append(used, secret)
			}
			header.Add(name, text)
		}
	}
	if host, ok := header["Host"]; ok && (len(host) != 1 || !isHost(host[0])) {
		return nil, nil, errors.New(`"Host": must be one host, or host:port`)
	}
	return header, used, nil
}

// checkName refuses names that frame the request or belong to the connection, which are net/http's,
// and those that callq sets.
func checkName(name string) error {
	switch canonical := http.CanonicalHeaderKey(name); {
	case frames(canonical):
		return errFrames
	case canonical == "Callq-Attempt" || canonical == "Callq-Call-Id":
		return errors.New("may not be set: callq sets it")
	case !isToken(name):
		return errors.New("is no header's name")
	}
	return nil
}

var errFrames = errors.New("may not be set: it is about the connection, not the call")

// frames reports whether a header is about the connection.
func frames(canonical string) bool {
	switch canonical {
	case "Connection", "Content-Length", "Expect", "Http2-Settings", "Keep-Alive", "Proxy-Authenticate",
		"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// readHeaderValue reads a text, or the secret of a name with what is to stand before it.
func readHeaderValue(value json.RawMessage, s secrets) (text, name string, err error) {
	ref, ok, err := readSecretRef(value)
	switch {
	case err != nil:
		return "", "", err
	case ok:
		secret, known := s[ref.name]
		if !known {
			return "", "", refused(fmt.Errorf("%q is not one of this worker's http_task.secrets", ref.name))
		}
		text, name = ref.prefix+secret.value, ref.name
	default:
		if text, err = readString(value); err != nil {
			return "", "", errors.New(`must be a string or {"secret": NAME}, or an array of these`)
		}
	}
	if hasControl(text) {
		return "", "", errors.New("has a line break or another control character")
	}
	return text, name, nil
}

// secretRef is {"secret": "STRIPE_KEY", "prefix": "Bearer "}, a header's value in call_data.
type secretRef struct{ name, prefix string }

// readSecretRef reads one; false: the value is none.
func readSecretRef(value json.RawMessage) (ref secretRef, ok bool, err error) {
	object, err := readObject(value)
	if err != nil || object["secret"] == nil {
		return ref, false, nil
	}
	for name, field := range object {
		switch name {
		case "secret":
			ref.name, err = readString(field)
		case "prefix":
			ref.prefix, err = readString(field)
		default:
			err = errors.New("no such field; there are secret and prefix")
		}
		if err != nil {
			return ref, true, fmt.Errorf("%q: %w", name, err)
		}
	}
	return ref, true, nil
}
