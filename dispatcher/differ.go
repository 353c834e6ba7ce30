package dispatcher

import "slices"

// Want is what some of the live processes say of a limit or queue.
type Want struct {
	By   []string `json:"by"`
	Rule string   `json:"rule"`
}

// notPublished is what a process says of a limit or queue that its configuration does not have.
const notPublished = "not in its configuration"

// Differences are, by name, the limits and the queues of which live processes publish different
// rules, with what each wants, the oldest first. What holds instead is in Postgres.
func Differences(live []Published) (limits, queues map[string][]Want) {
	limits = differing(live, func(r Rules) map[string]string {
		said := map[string]string{}
		for _, l := range r.Limits {
			said[l.Name] = l.String()
		}
		return said
	})
	queues = differing(live, func(r Rules) map[string]string {
		said := map[string]string{}
		for _, q := range r.Queues {
			said[q.Name] = q.String()
		}
		return said
	})
	return limits, queues
}

// differing compares what rules say by name.
func differing(live []Published, by func(Rules) map[string]string) map[string][]Want {
	wants := map[string][]Want{}
	said := make([]map[string]string, len(live))
	for i, p := range live {
		said[i] = by(p.Rules)
		for name := range said[i] {
			wants[name] = nil
		}
	}
	for name := range wants {
		var list []Want
		for i, p := range live {
			rule, has := said[i][name]
			if !has {
				rule = notPublished
			}
			if same := slices.IndexFunc(list, func(w Want) bool { return w.Rule == rule }); same >= 0 {
				list[same].By = append(list[same].By, p.By)
			} else {
				list = append(list, Want{By: []string{p.By}, Rule: rule})
			}
		}
		if len(list) > 1 {
			wants[name] = list
		} else {
			delete(wants, name)
		}
	}
	return wants
}
