package hours

import "fmt"

// Cache keeps hours by their text: parsing may open a file for the zone.
type Cache map[string]Hours

// All parses texts. It fails if this machine does not know a zone.
func (c Cache) All(texts []string) (All, error) {
	var all All
	for _, text := range texts {
		h, known := c[text]
		if !known {
			var err error
			if h, err = Parse(text); err != nil {
				return nil, fmt.Errorf("read the hours %q: %w", text, err)
			}
			if len(c) >= 1000 { // after so many reloads
				clear(c)
			}
			c[text] = h
		}
		all = append(all, h)
	}
	return all, nil
}
