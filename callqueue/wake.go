package callqueue

// WakeChannel is the NOTIFY channel that wakes the dispatchers of the schema callq; those of others hear on its name with _wake.
// Nothing depends on a wake's arrival. Its payload is empty, WakeFreed or WakeJoined.
const WakeChannel = "callq_wake"

// WakeFreed is the payload of a wake because units of a limit came free. The dispatchers then also poll queues
// whose limits could not have had capacity yet.
const WakeFreed = "freed"

// WakeJoined is the payload of a wake because a worker came. The dispatchers then read anew which there are.
const WakeJoined = "joined"

const wakeFreedSQL = `SELECT pg_notify('` + WakeChannel + `', '` + WakeFreed + `')`
