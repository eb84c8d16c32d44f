----------------------------- MODULE Partitions -----------------------------
(* A partition of workflows moves from one process to another, while its commands cause others on a second partition.

Stands for: `Processor.submit` of workflows/processor/processor.py; `Follower.own`, `Follower._confirm` and
`Follower._send` of workflows/partitions/follower.py; `put_out` and `FollowedPartition._caused` of
workflows/partitions/followed.py; `Ownership` of server/workflows/shared/ownership.py; `Checkpoints.save` of
workflows/partitions/checkpoints.py. The rows of a store are a function of the entries up to its place, so the place is
the store. Each command of the log causes the command of the same number on the other partition. Timers are left out:
the first entry of one takes it, by the same rule for all. What is sent, and what is saved, is looked at by itself.

Faults: a partition is given to one process, by the group or by the lease of a bucket, while another still works for it,
at any step; a process dies and loses the end of its store; the answer of an append is lost, so that the entry is there
or not, and sent again; the newest checkpoint is damaged.
Flaws:  "no numbers": the other partition applies whatever comes.
        "noted first": what is sent on is noted in the log before it is there.
        "unowned replies": a process that lost the partition replies to the callers that it still has.
        "one checkpoint": the log is trimmed up to the only checkpoint. *)

EXTENDS Naturals, Sequences, FiniteSets
CONSTANT Flaw

Processes == {"a", "b"}
CommandsMax == 2
EntriesMax == 3
SentMax == 3

VARIABLES about, log, other, process, replied, checkpoints, trimmed, damaged
state == <<about, log, other, process, replied, checkpoints, trimmed, damaged>>

Max(set) == IF set = {} THEN 0 ELSE CHOOSE one \in set : \A less \in set : less <= one
Commands(place) == Cardinality({at \in 1..place : log[at].kind = "command"})
Sent(place) == Max({log[at].number : at \in {at \in 1..place : log[at].kind = "sent"}})
Outbox(place) == (Sent(place) + 1)..Commands(place)

(* What the other partition has applied: numbers in their order, each once. *)
RECURSIVE Known(_)
Known(entries) ==
    IF entries = <<>> THEN 0
    ELSE LET before == Known(SubSeq(entries, 1, Len(entries) - 1))
         IN IF entries[Len(entries)] = before + 1 THEN before + 1 ELSE before
Effects == IF Flaw = "no numbers" THEN Len(other) ELSE Known(other)

Fresh(place) == [place |-> place, owns |-> FALSE, sent |-> 0, sending |-> <<>>, waits |-> {}]

Init ==
    /\ about \in {"sending", "checkpoints"}
    /\ log = <<>> /\ other = <<>>
    /\ process = [name \in Processes |-> Fresh(0)]
    /\ replied = {}
    /\ checkpoints = {} /\ trimmed = 0 /\ damaged = FALSE

Entry(kind, number) == [kind |-> kind, number |-> number]

Own(name) ==
    /\ ~process[name].owns /\ process[name].place = Len(log)
    /\ process' = [process EXCEPT ![name].owns = TRUE]
    /\ UNCHANGED <<about, log, other, replied, checkpoints, trimmed, damaged>>

(* First it is no owner, then its callers get an error: between the two its thread goes on. *)
Lose(name) ==
    /\ process[name].owns
    /\ process' = [process EXCEPT ![name].owns = FALSE]
    /\ UNCHANGED <<about, log, other, replied, checkpoints, trimmed, damaged>>

FailAll(name) ==
    /\ ~process[name].owns /\ process[name].waits # {}
    /\ process' = [process EXCEPT ![name].waits = {}]
    /\ UNCHANGED <<about, log, other, replied, checkpoints, trimmed, damaged>>

Submit(name) ==
    /\ process[name].owns /\ Commands(Len(log)) < CommandsMax /\ Len(log) < EntriesMax
    /\ log' = Append(log, Entry("command", Commands(Len(log)) + 1))
    /\ process' = [process EXCEPT ![name].waits = IF about = "sending" THEN {Len(log) + 1} ELSE {}]
    /\ UNCHANGED <<about, other, replied, checkpoints, trimmed, damaged>>

Apply(name) ==
    /\ process[name].place < Len(log)
    /\ process' = [process EXCEPT ![name].place = @ + 1]
    /\ UNCHANGED <<about, log, other, replied, checkpoints, trimmed, damaged>>

-----------------------------------------------------------------------------
ToSend(name) == {number \in Outbox(process[name].place) : number > process[name].sent}

BeginSending(name) ==
    /\ about = "sending" /\ process[name].owns /\ process[name].sending = <<>> /\ ToSend(name) # {}
    /\ process' = [process EXCEPT ![name].sending =
            [at \in 1..Cardinality(ToSend(name)) |-> Max(ToSend(name)) - Cardinality(ToSend(name)) + at],
            ![name].sent = IF Flaw = "noted first" THEN Max(ToSend(name)) ELSE @]
    /\ IF Flaw = "noted first"
       THEN Len(log) < EntriesMax /\ log' = Append(log, Entry("sent", Max(ToSend(name))))
       ELSE UNCHANGED log
    /\ UNCHANGED <<about, other, replied, checkpoints, trimmed, damaged>>

(* An append whose answer is lost ends the round: all of it is sent again. *)
Send(name) ==
    LET is == process[name]
        left == Tail(is.sending)
        last == left = <<>> /\ Flaw # "noted first"
    IN /\ is.sending # <<>> /\ Len(other) < SentMax
       /\ \/ /\ other' = Append(other, Head(is.sending))
             /\ process' = [process EXCEPT ![name].sending = left, ![name].sent = IF last THEN Head(is.sending) ELSE @]
             /\ IF last THEN Len(log) < EntriesMax /\ log' = Append(log, Entry("sent", Head(is.sending)))
                ELSE UNCHANGED log
          \/ /\ other' \in {other, Append(other, Head(is.sending))}
             /\ process' = [process EXCEPT ![name].sending = <<>>]
             /\ UNCHANGED log
       /\ UNCHANGED <<about, replied, checkpoints, trimmed, damaged>>

Reply(name, at) ==
    LET is == process[name]
    IN /\ at \in is.waits /\ is.place >= at /\ is.sending = <<>>
       /\ IF is.owns THEN ToSend(name) = {} ELSE Flaw = "unowned replies"
       /\ replied' = replied \cup {log[at].number}
       /\ process' = [process EXCEPT ![name].waits = @ \ {at}]
       /\ UNCHANGED <<about, log, other, checkpoints, trimmed, damaged>>

-----------------------------------------------------------------------------
(* The newest two checkpoints stay, and the log from the older of them on. *)
Save(name) ==
    LET is == process[name]
        known == checkpoints \cup {is.place}
        newest == Max(known)
        older == Max(known \ {newest})
    IN /\ about = "checkpoints" /\ is.owns /\ is.place > 0
       /\ checkpoints' = {newest, older} \ {0}
       /\ trimmed' = Max({trimmed, IF older = 0 /\ Flaw = "one checkpoint" THEN newest ELSE older})
       /\ UNCHANGED <<about, log, other, process, replied, damaged>>

Damage ==
    /\ ~damaged /\ checkpoints # {}
    /\ damaged' = TRUE /\ checkpoints' = checkpoints \ {Max(checkpoints)}
    /\ UNCHANGED <<about, log, other, process, replied, trimmed>>

(* It begins anew with what its store holds, or with a checkpoint. *)
Die(name) ==
    /\ \E place \in 0..process[name].place \cup checkpoints :
        place >= trimmed /\ process' = [process EXCEPT ![name] = Fresh(place)]
    /\ UNCHANGED <<about, log, other, replied, checkpoints, trimmed, damaged>>

Next ==
    \/ Damage
    \/ \E name \in Processes :
        \/ Own(name) \/ Lose(name) \/ FailAll(name) \/ Submit(name) \/ Apply(name)
        \/ BeginSending(name) \/ Send(name) \/ Save(name) \/ Die(name)
        \/ \E at \in 1..EntriesMax : Reply(name, at)

Spec == Init /\ [][Next]_state

EachIsAppliedOnce == Effects <= Commands(Len(log))
NothingIsForgotten == Sent(Len(log)) <= Known(other)
AReplyIsTrue == \A number \in replied : number <= Known(other)
AStoreCanBeMade == \E place \in checkpoints \cup {0} : place >= trimmed
=============================================================================
