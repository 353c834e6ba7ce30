package httptask

import "time"

// That a request was written says that the kernel has it. Where a segment of it is lost, TCP sends it again after
// 200 ms, 600 ms, 1.4 s …, so that it may arrive later than slack allows for. The kernel knows what the other side has
// acknowledged: so a request that is not answered soon is asked about, until all of it is. For as long as that is not
// known the attempt's units stay occupied, for limit.ResendMost at most; so an answer that takes long is worth telling
// the ledger about.

const (
	firstProbe = 50 * time.Millisecond // most answers are there by then
	lastProbe  = time.Second
	tellAfter  = 500 * time.Millisecond // no default slack is shorter: sooner it would free no unit
)

// probeIn asks after d whether what the pass wrote was acknowledged. The caller holds mu.
func (c *gatedConn) probeIn(p *pass, d time.Duration) {
	if p.probe != nil {
		p.probe.Stop()
	}
	p.probe = time.AfterFunc(d, func() { c.ask(p, min(2*d, lastProbe)) })
}

func (c *gatedConn) ask(p *pass, next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pass != p || p.writing {
		return
	}
	n, err := unacked(c.raw)
	if err != nil { // this system does not tell: then only an answer proves anything
		return
	}
	if n > 0 {
		c.probeIn(p, next)
		return
	}
	if p.acked.IsZero() {
		p.acked = time.Now()
	}
	if left := tellAfter - time.Since(p.sent); left > 0 {
		c.probeIn(p, left)
	} else if p.arrived != nil {
		p.arrived(p.acked)
	}
}
