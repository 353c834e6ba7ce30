package config

import (
	"cmp"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
)

// SecretValues reads what http_task.secrets point to, by name. Only a worker needs them: a file that
// names one is good on machines that do not have it. The error is an *Error with all that cannot be
// read, and shows none.
func (c *Config) SecretValues() (map[string]string, error) {
	values, failed := map[string]string{}, &Error{}
	for _, name := range slices.Sorted(maps.Keys(c.HTTPTask.Secrets)) {
		path, key := "http_task.secrets."+name, "env"
		value, err := c.env[c.HTTPTask.Secrets[name].Env], error(nil)
		if file := c.HTTPTask.Secrets[name].File; file != "" {
			var text []byte
			key = "file"
			text, err = os.ReadFile(file)
			value = string(text)
		}
		value = strings.TrimSpace(value)
		at := cmp.Or(c.from[path+"."+key], source{rank: rankFile, name: c.File})
		problem := Problem{Source: at.String(), Path: path + "." + key}
		switch {
		case err != nil:
			problem.Message = "cannot be read: " + reason(err)
		case value == "" && key == "file":
			problem.Message = "the file is empty"
		case value == "": // without the name, in case somebody wrote the secret instead
			problem.Message = "the variable that it names is not set"
		default:
			values[name] = value
			continue
		}
		failed.Problems = append(failed.Problems, problem)
	}
	if len(failed.Problems) > 0 {
		return nil, failed
	}
	return values, nil
}

// checkSecrets checks what no value shows by itself.
func (l *loader) checkSecrets(c *Config) {
	for name, s := range c.HTTPTask.Secrets {
		path := "http_task.secrets." + name
		if s.Env != "" && s.File != "" {
			l.fail(l.from[path+".file"], path+".file", "is given beside env", "one of them")
		}
		if hosts := l.from[path+".hosts"]; len(s.Hosts) == 0 && hosts.rank > rankDefault {
			l.fail(hosts, path+".hosts", "is empty: no call could use it", secretHosts)
		}
	}
}

const secretHosts = "host or host:port, over https (over http to private addresses); http://host for http to any"

// checkSecretHost takes host, host:port, and both after http://.
func checkSecretHost(s string) error {
	host := strings.TrimPrefix(s, "http://")
	if name, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fault{Quote(s) + " has no port from 1 to 65535", secretHosts}
		}
		host = name
	} else if ip := strings.Trim(host, "[]"); host == "["+ip+"]" && strings.Contains(ip, ":") {
		host = ip
	}
	if err := checkHost(host); err != nil {
		return fault{Quote(s) + " is not a host", secretHosts}
	}
	return nil
}

// checkVariable does not repeat what is none: it may be the secret itself.
func checkVariable(s string) error {
	if !isVariable(s) {
		return fault{"is not a variable's name", "the name of the environment variable that holds it, such as STRIPE_KEY"}
	}
	return nil
}
