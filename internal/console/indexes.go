package console

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/callq/callq/internal/admin"
)

func (p *pages) tasks(ctx context.Context, _ *http.Request) (*page, error) {
	tasks, err := admin.ReadTasks(ctx, p.Pool)
	return &page{Template: "tasks", Title: "Tasks", Live: "yes", Body: tasks}, err
}

// taskBody is the page of a task.
type taskBody struct {
	*admin.TaskDetails
	Groups []admin.ErrorGroup
}

func (p *pages) task(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadTask(ctx, p.Pool, name)
	if err != nil {
		return nil, err
	}
	if details == nil {
		return refused(http.StatusNotFound, "There is no task of this name: no live worker handles it, and no call waits for it. Calls of it that have ended are in the list of calls."), nil
	}
	b := taskBody{TaskDetails: details}
	b.Groups, err = admin.ReadErrors(ctx, p.Pool, admin.Filter{Task: name}, mostGrouped)
	return &page{Template: "task", Title: "Task " + admin.Short(name), Live: "yes", Body: b}, err
}

func (p *pages) worker(ctx context.Context, r *http.Request) (*page, error) {
	id := r.PathValue("name")
	details, err := admin.ReadWorker(ctx, p.Pool, id)
	if err == nil && details == nil {
		return refused(http.StatusNotFound, "No worker of this ID has run of late."), nil
	}
	return &page{Template: "worker", Title: "Worker " + admin.Short(id), Live: "yes", Body: details}, err
}

func (p *pages) budget(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	budgets, err := p.readBudgets(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range budgets {
		if b.Name == name {
			return &page{Template: "budget", Title: "Budget " + admin.Short(name), Live: "yes", Body: b}, nil
		}
	}
	return refused(http.StatusNotFound, "There is no budget of this name in force."), nil
}

// workersBody is the workers as of a time.
type workersBody struct {
	At      time.Time
	Workers []admin.Worker
}

func (p *pages) workers(ctx context.Context, _ *http.Request) (*page, error) {
	workers, err := admin.ReadWorkers(ctx, p.Pool)
	return &page{Template: "workers", Title: "Workers", Live: "yes", Body: workersBody{time.Now(), workers}}, err
}

func (p *pages) budgets(ctx context.Context, _ *http.Request) (*page, error) {
	budgets, err := p.readBudgets(ctx)
	return &page{Template: "budgets", Title: "Budgets", Live: "yes", Body: budgets}, err
}

func (p *pages) readBudgets(ctx context.Context) ([]admin.Budget, error) {
	budgets, err := admin.Budgets(ctx, p.Pool)
	if err == nil && p.AskBudgets != nil {
		p.AskBudgets(ctx, budgets)
	}
	return budgets, err
}

// keysBody is the keys whose calls wait.
type keysBody struct{ Keys []admin.Key }

func (p *pages) keys(ctx context.Context, r *http.Request) (*page, error) {
	if name := r.URL.Query().Get("key"); name != "" {
		r.SetPathValue("name", name)
		return p.key(ctx, r)
	}
	keys, err := admin.ReadKeys(ctx, p.Pool, "", perPage)
	return &page{Template: "keys", Title: "Keys", Live: "yes", Body: keysBody{keys}}, err
}

func (p *pages) key(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadKey(ctx, p.Pool, name)
	return &page{Template: "key", Title: "Key " + admin.Short(name), Live: "yes", Body: details}, err
}

// auditBody is a page of the audit, newest first.
type auditBody struct {
	Entries       []admin.AuditEntry
	Newest, Older string
}

func (p *pages) audit(ctx context.Context, r *http.Request) (*page, error) {
	before, _ := strconv.ParseInt(r.URL.Query().Get("before"), 10, 64)
	entries, err := admin.ReadAudit(ctx, p.Pool, before, perPage+1)
	if err != nil {
		return nil, err
	}
	b := auditBody{Entries: entries[:min(len(entries), perPage)]}
	if before > 0 {
		b.Newest = p.Prefix + "/audit"
	}
	if len(entries) > perPage {
		b.Older = p.Prefix + "/audit?before=" + strconv.FormatInt(entries[perPage-1].ID, 10)
	}
	return &page{Template: "audit", Title: "Audit", Body: b}, nil
}
