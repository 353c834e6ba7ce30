package dispatcher

import "testing"

// What cron cannot run is an error, and no panic.
func TestScheduleIsChecked(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"TZ=UTC", "CRON_TZ=Europe/Berlin", "TZ=", "every day", "61 * * * *", "@every x"} {
		s := Schedule{Retention: spec}
		if err := s.check(); err == nil {
			t.Errorf("%q is not refused", spec)
		}
	}
	for _, spec := range []string{"", "TZ=Europe/Berlin 0 4 * * *", "@daily"} {
		s := Schedule{Retention: spec}
		if err := s.check(); err != nil {
			t.Errorf("%q: %v", spec, err)
		}
	}
	for _, s := range []Schedule{{Verify: "of"}, {Dispatch: off}, {Retention: off, Verify: "@daily"}, {Vacuum: off}} {
		if err := s.check(); err == nil {
			t.Errorf("%+v is not refused", s)
		}
	}
	s := Schedule{Verify: "@daily"}
	if err := s.check(); err != nil {
		t.Error(err)
	}
}
