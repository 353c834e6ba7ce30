package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/callq/callq/internal/actions"
)

// api carries out what a script asks for in JSON.
func (p *pages) api(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("noun") + "/" + r.PathValue("verb")
	if _, status, why := p.mayAct(r, name); status != 0 {
		p.Guard.Refused(r, status, why)
		answer(w, status, map[string]string{"error": why})
		return
	}
	var asked actions.Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostForm))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil || decoder.Decode(new(any)) != io.EOF {
		answer(w, http.StatusBadRequest, map[string]string{"error": fmt.Sprintf("the body is not one JSON object of this action: %v", err)})
		return
	}
	result, err := p.do(r, name, asked, 0)
	if e, ok := errors.AsType[*actions.Error](err); ok {
		answer(w, statusOf(e), map[string]string{"error": e.Text})
		return
	}
	if err != nil {
		status, text := http.StatusInternalServerError, err.Error()
		away, why := p.Explain(err)
		if away {
			status, text = http.StatusServiceUnavailable, "Postgres cannot be reached: "+why
		}
		answer(w, status, map[string]string{"error": text})
		return
	}
	answer(w, http.StatusOK, result)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client has gone
}
