----------------------------- MODULE Publishing -----------------------------
(* Files named by their content, rows that name them, and collections that delete what no row names.

Stands for: `collections`, `check_published`, `publish`, `wait_collected`, `check_there`, `begin_collecting`,
`renew_collecting` and `end_collecting` of versions/staging/publishing.py; `_collect_ranges` and `_delete_ranges` of
versions/collect.py; `move_head` of versions/staging/branch_head.py. One row names the file, or none does; grace times
of readers are left out, as if over.
The count of collections is the term of their lease. As Lease.tla goes through it, one who looked at the lease has it
until the file is deleted; everybody may take any other holder for dead, at any time.

Faults: a builder or a collection rests between any two steps, for longer than a lease, or for ever: it died.
Flaws:  "no count": a swap looks only whether a collection deletes at that moment.
        "no second look": a collection deletes what it found before it began to delete.
        "no look at the lease": a collection deletes without one.
        "any end": a collection that ends gives back whatever lease there is.
        "count anew": the row of the lease goes when it is given back, and the count begins at 1 again. *)

EXTENDS Naturals, FiniteSets
CONSTANT Flaw

Files == {"x"}
None == "none"
Nobody == "nobody"
Collections == {"collection 1", "collection 2"}
TermsMax == 3
RevisionsMax == 3
Deleting == 99

VARIABLES lease, named, revision, files, builder, collection
state == <<lease, named, revision, files, builder, collection>>

Rest == [at |-> "idle", found |-> {}, term |-> 0]
Free == [holder |-> Nobody, term |-> IF Flaw = "count anew" THEN 0 ELSE lease.term]

Init ==
    /\ lease = [holder |-> Nobody, term |-> 0]
    /\ named = "x" /\ revision = 0 /\ files = {"x"}
    /\ builder = [at |-> "idle", count |-> 0, was |-> 0, file |-> None]
    /\ collection = [name \in Collections |-> Rest]

(* Another state takes the place of the one that is named, by a commit or a reset of somebody else. *)
Replace ==
    /\ named # None /\ revision < RevisionsMax
    /\ named' = None /\ revision' = revision + 1
    /\ UNCHANGED <<lease, files, builder, collection>>

Holds(name) == lease = [holder |-> name, term |-> collection[name].term]
IsSure(name) == collection[name].at = "sure" /\ Holds(name)

EndDead ==
    /\ lease.holder # Nobody /\ ~IsSure(lease.holder)
    /\ lease' = [lease EXCEPT !.holder = Nobody]
    /\ UNCHANGED <<named, revision, files, builder, collection>>

-----------------------------------------------------------------------------
Counted == IF lease.holder = Nobody THEN lease.term ELSE Deleting

Begin ==
    /\ builder.at = "idle"
    /\ builder' = [builder EXCEPT !.at = "counted", !.count = Counted]
    /\ UNCHANGED <<lease, named, revision, files, collection>>

Take ==
    /\ builder.at = "counted"
    /\ builder' = [builder EXCEPT !.at = "taken", !.was = revision]
    /\ UNCHANGED <<lease, named, revision, files, collection>>

(* A file that lies there is not written again. *)
Build(file) ==
    /\ builder.at = "taken"
    /\ files' = files \cup {file}
    /\ builder' = [builder EXCEPT !.at = "built", !.file = file]
    /\ UNCHANGED <<lease, named, revision, collection>>

Swap ==
    /\ builder.at = "built" /\ revision < RevisionsMax
    /\ IF lease.holder = Nobody /\ (Flaw = "no count" \/ builder.count = lease.term)
       THEN /\ builder' = [builder EXCEPT !.at = "idle"]
            /\ IF builder.was = revision
               THEN named' = builder.file /\ revision' = revision + 1
               ELSE UNCHANGED <<named, revision>>
       ELSE /\ builder' \in {[builder EXCEPT !.at = "idle"], [builder EXCEPT !.at = "refused"]}
            /\ UNCHANGED <<named, revision>>
    /\ UNCHANGED <<lease, files, collection>>

(* `publish` counts anew, then looks whether the files are there; `move_head` builds again. *)
CountAgain ==
    /\ builder.at = "refused" /\ Counted # Deleting
    /\ builder' = [builder EXCEPT !.at = "counted again", !.count = Counted]
    /\ UNCHANGED <<lease, named, revision, files, collection>>

LookAgain ==
    /\ builder.at = "counted again"
    /\ builder' = [builder EXCEPT !.at = IF builder.file \in files THEN "built" ELSE "idle"]
    /\ UNCHANGED <<lease, named, revision, files, collection>>

-----------------------------------------------------------------------------
Mark(name) ==
    /\ collection[name].at = "idle"
    /\ collection' = [collection EXCEPT ![name] = [Rest EXCEPT !.at = "marked", !.found = files \ {named}]]
    /\ UNCHANGED <<lease, named, revision, files, builder>>

BeginCollecting(name) ==
    /\ collection[name].at = "marked" /\ collection[name].found # {}
    /\ lease.holder = Nobody /\ lease.term < TermsMax
    /\ lease' = [holder |-> name, term |-> lease.term + 1]
    /\ collection' = [collection EXCEPT ![name].at = "deleting", ![name].term = lease.term + 1]
    /\ UNCHANGED <<named, revision, files, builder>>

Look(name) ==
    /\ collection[name].at = "deleting"
    /\ collection' = [collection EXCEPT ![name].at = "looked",
                        ![name].found = IF Flaw = "no second look" THEN @ ELSE @ \ {named}]
    /\ UNCHANGED <<lease, named, revision, files, builder>>

Renew(name) ==
    /\ collection[name].at = "looked" /\ collection[name].found # {}
    /\ collection' = [collection EXCEPT ![name].at =
            IF Holds(name) \/ Flaw = "no look at the lease" THEN "sure" ELSE "ends"]
    /\ UNCHANGED <<lease, named, revision, files, builder>>

Delete(name, file) ==
    /\ collection[name].at = "sure" /\ file \in collection[name].found
    /\ files' = files \ {file}
    /\ collection' = [collection EXCEPT ![name].at = "looked", ![name].found = @ \ {file}]
    /\ UNCHANGED <<lease, named, revision, builder>>

EndCollecting(name) ==
    /\ collection[name].at = "ends" \/ (collection[name].at = "looked" /\ collection[name].found = {})
    /\ lease' = IF Holds(name) \/ Flaw = "any end" THEN Free ELSE lease
    /\ collection' = [collection EXCEPT ![name] = Rest]
    /\ UNCHANGED <<named, revision, files, builder>>

Die(name) ==
    /\ collection[name].at # "idle"
    /\ collection' = [collection EXCEPT ![name] = Rest]
    /\ UNCHANGED <<lease, named, revision, files, builder>>

-----------------------------------------------------------------------------
Next ==
    \/ Replace \/ EndDead
    \/ Begin \/ Take \/ Swap \/ CountAgain \/ LookAgain
    \/ \E file \in Files : Build(file)
    \/ \E name \in Collections :
        \/ Mark(name) \/ BeginCollecting(name) \/ Look(name) \/ Renew(name) \/ EndCollecting(name) \/ Die(name)
        \/ \E file \in Files : Delete(name, file)

Spec == Init /\ [][Next]_state

WhatIsNamedIsThere == named \in files \cup {None}
=============================================================================
