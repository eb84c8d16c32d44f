------------------------------- MODULE Lease -------------------------------
(* The lease on a place for backups: one machine at a time changes the place, though each has a clock of its own.

Stands for: `leased`, `PlaceLease.extend`, `PlaceLease.end` of nodes/backups/lease.py, and what holders do between two
calls of `extend`. The row of the lease is changed by compare-and-swap: `tag` counts its changes.
It is assumed that a holder acts within half of a lease after it called `extend`, and that clocks differ by one tick, a
quarter of a lease. The lease of collections, in staging/publishing.py, is in Publishing.tla.

Faults: a holder dies, and so does not give back; the answer of a swap is lost; a holder rests as long as it likes.
Flaws:  "no comparison": a swap does not look at the tag.
        "no extension": a holder acts without `extend`.
        "clock ahead": the clock of one machine is a whole lease ahead.
        "clock set back": the clock of a holder is set back by half of a lease while it holds it. *)

EXTENDS Naturals
CONSTANT Flaw

Machines == {"one", "other"}
Length == 4
Half == 2
Nobody == "nobody"

VARIABLES now, back, row, machine, trespass
state == <<now, back, row, machine, trespass>>

Ahead == IF Flaw = "clock ahead" THEN Length ELSE 1
Clock(name) == 4 + now + (IF name = "other" THEN Ahead ELSE 0) - (IF name = "one" THEN back ELSE 0)

Rest == [at |-> "idle", tag |-> 0, until |-> 0, due |-> 0]

Init ==
    /\ now = 0 /\ back = 0
    /\ row = [owner |-> Nobody, until |-> 0, tag |-> 0]
    /\ machine = [name \in Machines |-> Rest]
    /\ trespass = FALSE

Tick ==
    /\ now < 8
    /\ \A name \in Machines : machine[name].at = "acts" => machine[name].due > now
    /\ now' = now + 1 /\ UNCHANGED <<back, row, machine, trespass>>

SetBack == Flaw = "clock set back" /\ back = 0 /\ back' = Half /\ UNCHANGED <<now, row, machine, trespass>>

Look(name) ==
    /\ machine[name].at = "idle" /\ row.until <= Clock(name)
    /\ machine' = [machine EXCEPT ![name] = [Rest EXCEPT !.at = "looked", !.tag = row.tag]]
    /\ UNCHANGED <<now, back, row, trespass>>

Agrees(name) == Flaw = "no comparison" \/ row.tag = machine[name].tag

(* A swap, whose answer may be lost: then its machine does not know that it holds the lease. *)
Swapped(name, until, next, otherwise) ==
    IF Agrees(name)
    THEN /\ row' = [owner |-> name, until |-> until, tag |-> row.tag + 1]
         /\ machine' \in {[machine EXCEPT ![name] = next], [machine EXCEPT ![name] = otherwise]}
    ELSE /\ machine' = [machine EXCEPT ![name] = otherwise] /\ UNCHANGED row

Take(name) ==
    /\ machine[name].at = "looked" /\ row.tag < 5
    /\ LET until == Clock(name) + Length
       IN Swapped(name, until, [at |-> "holds", tag |-> row.tag + 1, until |-> until, due |-> 0], Rest)
    /\ UNCHANGED <<now, back, trespass>>

Extend(name) ==
    /\ machine[name].at = "holds"
    /\ IF machine[name].until > Clock(name) + Half
       THEN machine' = [machine EXCEPT ![name].at = "acts", ![name].due = now + Half - 1] /\ UNCHANGED row
       ELSE /\ row.tag < 5
            /\ LET until == Clock(name) + Length
               IN Swapped(name, until,
                    [at |-> "acts", tag |-> row.tag + 1, until |-> until, due |-> now + Half - 1], Rest)
    /\ UNCHANGED <<now, back, trespass>>

Act(name) ==
    /\ \/ machine[name].at = "acts"
       \/ Flaw = "no extension" /\ machine[name].at = "holds"
    /\ trespass' = (trespass \/ row.owner # name)
    /\ machine' = [machine EXCEPT ![name].at = "holds"]
    /\ UNCHANGED <<now, back, row>>

GiveBack(name) ==
    /\ machine[name].at = "holds"
    /\ row' = IF Agrees(name) THEN [row EXCEPT !.until = 0, !.tag = @ + 1] ELSE row
    /\ machine' = [machine EXCEPT ![name] = Rest]
    /\ UNCHANGED <<now, back, trespass>>

Die(name) ==
    /\ machine[name].at # "idle"
    /\ machine' = [machine EXCEPT ![name] = Rest]
    /\ UNCHANGED <<now, back, row, trespass>>

Next ==
    \/ Tick \/ SetBack
    \/ \E name \in Machines :
        Look(name) \/ Take(name) \/ Extend(name) \/ Act(name) \/ GiveBack(name) \/ Die(name)

Spec == Init /\ [][Next]_state

OnlyTheHolderActs == ~trespass
=============================================================================
