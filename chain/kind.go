package chain

import "slices"

// A Kind says what an entry records. The list is closed: what the kernel does is
// one of these.
type Kind string

const (
	DaemonStarted Kind = "daemon.started"
	DaemonStopped Kind = "daemon.stopped"

	SessionOpened Kind = "session.opened"
	SessionClosed Kind = "session.closed"
	RunStarted    Kind = "run.started"
	RunMoved      Kind = "run.moved" // from one state to another
	RunEnded      Kind = "run.ended"

	Decided          Kind = "decision"
	ApprovalAsked    Kind = "approval.asked"
	ApprovalAnswered Kind = "approval.answered"
	ApprovalExpired  Kind = "approval.expired"
	PolicyChanged    Kind = "policy.changed"

	CallStarted Kind = "call.started" // of a capability
	CallEnded   Kind = "call.ended"
	LLMCalled   Kind = "llm.called"
	SiblingTold Kind = "sibling.told" // one agent has asked another for something, or was answered
	Egress      Kind = "egress"       // a request or connection that left, or was not let

	SecretStored  Kind = "secret.stored"
	SecretDeleted Kind = "secret.deleted"
	SecretUsed    Kind = "secret.used"
	SecretRefused Kind = "secret.refused"
	SecretGranted Kind = "secret.granted"
	SecretRevoked Kind = "secret.revoked"
	BudgetCharged Kind = "budget.charged"
	BudgetSpent   Kind = "budget.spent" // nothing is left of it

	CheckpointTaken   Kind = "checkpoint.taken" // of a run
	CheckpointResumed Kind = "checkpoint.resumed"
	SnapshotTaken     Kind = "snapshot.taken"
	SnapshotDeleted   Kind = "snapshot.deleted"
	JailBranched      Kind = "jail.branched"
	JailRewound       Kind = "jail.rewound"

	JailCreated Kind = "jail.created"
	JailStarted Kind = "jail.started"
	JailPaused  Kind = "jail.paused"
	JailResumed Kind = "jail.resumed"
	JailStopped Kind = "jail.stopped"
	JailFailed  Kind = "jail.failed"
	JailDeleted Kind = "jail.deleted"
	JailLimited Kind = "jail.limited" // what it may use was changed, or was not

	EventsSealed Kind = "events.sealed"

	BundleInstalled Kind = "bundle.installed"
	BundleRemoved   Kind = "bundle.removed"
	OperatorActed   Kind = "operator.acted" // what a person did that has no kind of its own
)

var kinds = []Kind{
	DaemonStarted, DaemonStopped,
	SessionOpened, SessionClosed, RunStarted, RunMoved, RunEnded,
	Decided, ApprovalAsked, ApprovalAnswered, ApprovalExpired, PolicyChanged,
	CallStarted, CallEnded, LLMCalled, SiblingTold, Egress,
	SecretStored, SecretDeleted, SecretUsed, SecretRefused, SecretGranted, SecretRevoked, BudgetCharged, BudgetSpent,
	CheckpointTaken, CheckpointResumed, SnapshotTaken, SnapshotDeleted, JailBranched, JailRewound,
	JailCreated, JailStarted, JailPaused, JailResumed, JailStopped, JailFailed, JailDeleted, JailLimited,
	EventsSealed, BundleInstalled, BundleRemoved, OperatorActed,
}

// Kinds returns all there are.
func Kinds() []Kind { return slices.Clone(kinds) }

// Known reports whether k is one of them.
func (k Kind) Known() bool { return slices.Contains(kinds, k) }
