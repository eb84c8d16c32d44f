------------------------------- MODULE Lease -------------------------------
(* A lease: of processes on several machines one may act at a time, and each measures by clocks of its own.

Stands for: `LeaseWatch.left`, `LeaseWatch.note`, `LeaseWatch.is_young`, `LeaseRow.take`, `LeaseRow.renew`,
`LeaseRow.hold`, `LeaseRow.give_back` and `LeaseRow.end_dead` of kernel/lease.py; those who act outside of the space
with it, `renew_collecting` of versions/staging/publishing.py and `Sweep.delete` of maps/loads/garbage.py;
`BucketOwner.take` of workflows/logs/bucket_owner.py, where a process has its lease again under its name, or gives back
that of a dead one of its machine.
A write of a holder looks at the row. What is done outside cannot: who does it must know that the lease lasts longer.
Standing is how long a process saw its row as it is; age and day are the times since a holder put its row, by its
monotonic clock and by that of the day. A look that shows an older row than there is makes a watcher wait longer.
It is assumed that what is done outside is over within a fifth of a lease, in which its machine does not sleep; that no
clock goes twice as fast as another one; and that none is set back while its machine sleeps.

Faults: a holder rests as long as it likes, and comes back; its machine sleeps, and the monotonic clock with it; its
clock of the day jumps; the answer of its write comes late, or never; a process dies, and begins anew without what it
knew; clocks go at different rates.
Flaws:  "no comparison": a write of a holder does not look at the row.
        "no second look": the row is not read again in the write that takes the lease.
        "no beats": a watcher does not see that a holder renews.
        "other clocks": a watcher takes what looks old by its clock of the day.
        "no renewal": a holder acts outside however long ago it renewed.
        "from the answer": a holder measures from the answer of its write on.
        "monotonic alone": a holder measures by its monotonic clock only.
        "day alone": a holder measures by its clock of the day only.
        "set back asleep": a clock is set back while its machine sleeps.
        "rates apart": a clock goes three times as fast as another one. *)

EXTENDS Naturals, Sequences
CONSTANT Flaw

Machines == {"one", "other"}
Length == 5
Sure == 2
TermsMax == 3
BeatsMax == 1
BegunMax == 1
Free(term) == [holder |-> <<>>, term |-> term, beat |-> 0]

VARIABLES row, machine, phase, named, trespass
state == <<row, machine, phase, named, trespass>>

Rest == [at |-> "idle", term |-> 0, seen |-> Free(0), standing |-> 0, age |-> Sure, day |-> Sure,
         asleep |-> FALSE, fault |-> "", begun |-> 0]

Init ==
    /\ row = Free(0)
    /\ named \in {"by address", "by chance"} \* who begins anew has its former name, or another one
    /\ machine = [name \in Machines |-> Rest]
    /\ phase = 0
    /\ trespass = FALSE

Acting(name) == machine[name].at \in {"acts", "must end"}
May(name) == ~machine[name].asleep /\ ~Acting(name)
Name(name) == <<name, machine[name].begun>>
Holds(name) == row.holder = Name(name) /\ row.term = machine[name].term

(* Of four ticks the clock of one machine misses one, and that of the other has one more. *)
Least(one, two) == IF one < two THEN one ELSE two
Rate(name) ==
    IF name = "one" THEN (IF phase = 0 THEN 0 ELSE 1)
    ELSE IF Flaw = "rates apart" THEN 3 ELSE IF phase = 0 THEN 2 ELSE 1

Later(name) ==
    LET is == machine[name]
        step == IF is.asleep THEN 0 ELSE Rate(name)
    IN [is EXCEPT !.at = IF @ = "acts" THEN "must end" ELSE @, !.age = Least(@ + step, Sure),
                  !.day = Least(@ + Rate(name), Sure),
                  !.standing = IF is.at = "idle" /\ is.seen.holder # <<>> THEN Least(@ + step, Length) ELSE @]

Tick ==
    /\ \A name \in Machines : machine[name].at # "must end"
    /\ machine' = [name \in Machines |-> Later(name)]
    /\ phase' = (phase + 1) % 4
    /\ UNCHANGED <<row, named, trespass>>

-----------------------------------------------------------------------------
IsSeen(name) ==
    LET seen == machine[name].seen
    IN IF Flaw = "no beats" THEN <<seen.holder, seen.term>> = <<row.holder, row.term>> ELSE seen = row

Look(name) ==
    /\ machine[name].at = "idle" /\ ~IsSeen(name)
    /\ machine' = [machine EXCEPT ![name].seen = row, ![name].standing = 0]
    /\ UNCHANGED <<row, phase, named, trespass>>

Over(name) ==
    \/ row.holder = <<>> \/ Flaw = "other clocks"
    \/ machine[name].standing = Length /\ (IsSeen(name) \/ Flaw = "no second look")

(* `LeaseWatch.note`: what a holder measures begins before the write, whose answer is still to come. *)
Put(name, lease, at) ==
    /\ row' = lease
    /\ machine' = [machine EXCEPT ![name] =
            [Rest EXCEPT !.at = at, !.term = lease.term, !.age = 0, !.day = 0, !.begun = machine[name].begun]]

Leave(name) == machine' = [machine EXCEPT ![name] = [Rest EXCEPT !.begun = machine[name].begun]]

Take(name) ==
    /\ machine[name].at = "idle" /\ machine[name].begun <= BegunMax
    /\ IF row.holder = Name(name)
       THEN row.beat < BeatsMax /\ Put(name, [row EXCEPT !.beat = @ + 1], "takes")
       ELSE /\ Over(name) /\ row.term < TermsMax
            /\ Put(name, [holder |-> Name(name), term |-> row.term + 1, beat |-> 0], "takes")
    /\ UNCHANGED <<phase, named, trespass>>

EndDead(name) ==
    /\ machine[name].at = "idle" /\ row.holder # <<>>
    /\ \/ Over(name)
       \/ row.holder[1] = name /\ row.holder[2] < machine[name].begun \* of this machine, where it is seen that it died
    /\ row' = Free(row.term)
    /\ UNCHANGED <<machine, phase, named, trespass>>

Renew(name) ==
    /\ May(name) /\ machine[name].at = "holds"
    /\ IF Holds(name)
       THEN row.beat < BeatsMax /\ Put(name, [row EXCEPT !.beat = @ + 1], "renews")
       ELSE Leave(name) /\ UNCHANGED row
    /\ UNCHANGED <<phase, named, trespass>>

Answer(name) ==
    /\ May(name) /\ machine[name].at \in {"takes", "renews"}
    /\ machine' = [machine EXCEPT ![name].at = "holds", ![name].age = IF Flaw = "from the answer" THEN 0 ELSE @]
    /\ UNCHANGED <<row, phase, named, trespass>>

(* Who took the lease and does not know goes on watching; who renewed it has it as before, and renews again. *)
LoseAnswer(name) ==
    LET is == machine[name]
    IN /\ May(name) /\ is.at \in {"takes", "renews"}
       /\ machine' = [machine EXCEPT ![name] =
            IF is.at = "renews" THEN [is EXCEPT !.at = "holds", !.age = Sure, !.day = Sure]
            ELSE [Rest EXCEPT !.begun = IF named = "by chance" THEN is.begun + 1 ELSE is.begun]]
       /\ UNCHANGED <<row, phase, named, trespass>>

GiveBack(name) ==
    /\ May(name) /\ machine[name].at = "holds"
    /\ row' = IF Holds(name) THEN Free(row.term) ELSE row
    /\ Leave(name)
    /\ UNCHANGED <<phase, named, trespass>>

-----------------------------------------------------------------------------
Write(name) ==
    /\ May(name) /\ machine[name].at = "holds"
    /\ IF Holds(name) \/ Flaw = "no comparison"
       THEN trespass' = (trespass \/ ~Holds(name)) /\ UNCHANGED machine
       ELSE Leave(name) /\ UNCHANGED trespass
    /\ UNCHANGED <<row, phase, named>>

(* `LeaseWatch.is_young`: young by both clocks. *)
IsFresh(name) ==
    /\ machine[name].age < Sure \/ Flaw \in {"no renewal", "day alone"}
    /\ machine[name].day < Sure \/ Flaw \in {"no renewal", "monotonic alone"}

Act(name) ==
    /\ May(name) /\ machine[name].at = "holds" /\ IsFresh(name)
    /\ machine' = [machine EXCEPT ![name].at = "acts"]
    /\ UNCHANGED <<row, phase, named, trespass>>

EndAct(name) ==
    /\ Acting(name)
    /\ machine' = [machine EXCEPT ![name].at = "holds"]
    /\ UNCHANGED <<row, phase, named, trespass>>

-----------------------------------------------------------------------------
Sleep(name) ==
    /\ May(name) /\ machine[name].at # "idle"
    /\ machine[name].fault # "jumped" \/ Flaw = "set back asleep"
    /\ machine' = [machine EXCEPT ![name].asleep = TRUE, ![name].fault = "slept"]
    /\ UNCHANGED <<row, phase, named, trespass>>

Wake(name) ==
    /\ machine[name].asleep
    /\ machine' = [machine EXCEPT ![name].asleep = FALSE]
    /\ UNCHANGED <<row, phase, named, trespass>>

Jump(name) ==
    /\ May(name) /\ machine[name].at # "idle"
    /\ machine[name].fault # "slept" \/ Flaw = "set back asleep"
    /\ machine' \in {[machine EXCEPT ![name].day = day, ![name].fault = "jumped"] : day \in 0..Sure}
    /\ UNCHANGED <<row, phase, named, trespass>>

Die(name) ==
    /\ machine[name].at # "idle"
    /\ machine' = [machine EXCEPT ![name] =
            [Rest EXCEPT !.begun = IF named = "by chance" THEN machine[name].begun + 1 ELSE 0]]
    /\ UNCHANGED <<row, phase, named, trespass>>

Next ==
    \/ Tick
    \/ \E name \in Machines :
        \/ Look(name) \/ Take(name) \/ EndDead(name) \/ Renew(name) \/ Answer(name) \/ LoseAnswer(name)
        \/ GiveBack(name) \/ Write(name) \/ Act(name) \/ EndAct(name)
        \/ Sleep(name) \/ Wake(name) \/ Jump(name) \/ Die(name)

Spec == Init /\ [][Next]_state

AFormerHolderIsRefused == ~trespass
OnlyTheHolderActs == \A name \in Machines : Acting(name) => Holds(name)
=============================================================================
