package model

// Broken is a set of rules that the model is told not to keep. Each stands for a mistake that is
// easy to make; the tests show that each is noticed.
type Broken uint64

const (
	// The claim.
	NoLock          Broken = 1 << iota // claims do not lock the limit
	CountDispatched                    // occupied: claimed within the window, whatever came later
	CountStarted                       // occupied: started within the window; what has not started is not counted
	TwoStatements                      // usage is counted first, then the open rows, in two statements
	OpenNotCounted                     // an attempt counts once it is charged
	RoundedDown                        // buckets are labelled with their start
	NoRecount                          // the clock is not read again after the count
	GainForgotten                      // a window is not widened when the clock was set forward
	GainKeptShort                      // ... or only for one window and the gain
	GainLost                           // ... or until a failover loses what it gained
	GainUnwritten                      // ... or only by the process that saw it

	// Limits that change.
	NoRecall           // a lowered limit leaves unstarted attempts
	RecallSkips        // a recall passes over rows that are locked
	NoneMissing        // a failover is taken to have lost nothing
	MissingForgetsGain // what it lost is taken to be over the sooner when the clock is set forward
	MissingHasArrived  // ... and to have arrived by then
	SameClock          // ... or what the former server's clock, ahead of this one's, no longer counted to be known
	OpenIsKnown        // what a failover finds open is taken to be used, and nothing in its place
	FindsAll           // workers say that they find starts which are missing
	// The start.
	NoCompareAndSet // a start takes the row whoever has it
	NoEpochCheck    // a start takes rows of an older epoch
	NewM0           // a start that is asked again has a new m0
	LateM0          // m0 is read when the start is answered
	NoGate          // the request is written whenever the worker comes to it
	GateForgets     // the gate asks for send_within, and not for the timeout
	SecondRequest   // net/http sends a request again when there was no answer
	ClockAlone      // started_at may be earlier than claimed_at
	// The finish.
	NoSlack           // without an answer, until is when the request was written
	UntilExtended     // until follows the last write, past send_within
	ResendUncharged   // without an answer, what TCP may have sent again is left out
	ResendUncounted   // and while the attempt is open, too
	AckedUnseen       // a request counts as acknowledged though it may be on its way
	EndIsProof        // a handler's end proves that its request has arrived
	FinishOverwrites  // a finish changes the call whether or not its attempt is open
	UnsentUnlessHeard // without an answer nothing is charged
	// The sweepers.
	RefundLost      // a lost attempt is not charged
	RefundStarted   // the sweeper of unstarted attempts closes one that has started meanwhile
	RefundEpoch     // an attempt of an older epoch is not charged
	EpochAsOfNow    // a started attempt of an older epoch is charged at the sweep, not at its start
	UnsentOldEpoch  // recall, sweeper and worker close unstarted rows of an older epoch as not sent
	LostAtStart     // a lost attempt is charged at its start
	ResendAnew      // a resend opens a new attempt instead
	NoResend        // what Redis lost is neither sent again nor taken back
	RetireFrees     // usage goes with the call's row
	DeleteCloses    // deleting a call deletes its open row
	TakenBackSilent // what is taken back leaves its call dispatched

	// Verify.
	VerifyAtStart     // verify takes an attempt's start for its until
	VerifyClosed      // verify leaves out open attempts
	VerifyOpenForEver // verify takes an open attempt's request to be on its way, however long ago it started
)
