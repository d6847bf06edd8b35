package chain

import "slices"

// A Kind is the type of event that an entry records. The list of kinds is fixed: all actions
// of the policy engine have one of them.
type Kind string

const (
	DaemonStarted Kind = "daemon.started"
	DaemonStopped Kind = "daemon.stopped"

	SessionOpened Kind = "session.opened"
	SessionClosed Kind = "session.closed"
	RunStarted    Kind = "run.started"
	RunMoved      Kind = "run.moved" // changed its state
	RunEnded      Kind = "run.ended"

	Decided          Kind = "decision"
	ApprovalAsked    Kind = "approval.asked"
	ApprovalAnswered Kind = "approval.answered"
	ApprovalExpired  Kind = "approval.expired"
	PolicyChanged    Kind = "policy.changed"

	CallStarted Kind = "call.started" // a call of a capability
	CallEnded   Kind = "call.ended"
	LLMCalled   Kind = "llm.called"
	SiblingTold Kind = "sibling.told" // a request from one agent to another, or its response
	Egress      Kind = "egress"       // an allowed or denied request or connection

	SecretStored  Kind = "secret.stored"
	SecretDeleted Kind = "secret.deleted"
	SecretUsed    Kind = "secret.used"
	SecretRefused Kind = "secret.refused"
	SecretGranted Kind = "secret.granted"
	SecretRevoked Kind = "secret.revoked"
	BudgetCharged Kind = "budget.charged"
	BudgetSpent   Kind = "budget.spent" // the budget is exhausted

	CheckpointTaken   Kind = "checkpoint.taken" // a checkpoint of a run
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
	JailLimited Kind = "jail.limited" // its limits were changed, or the change failed

	EventsSealed Kind = "events.sealed"

	BundleInstalled Kind = "bundle.installed"
	BundleRemoved   Kind = "bundle.removed"
	OperatorActed   Kind = "operator.acted" // an action of a person without a kind of its own
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

// Kinds returns all kinds.
func Kinds() []Kind { return slices.Clone(kinds) }

// Known reports whether k is a defined kind.
func (k Kind) Known() bool { return slices.Contains(kinds, k) }
