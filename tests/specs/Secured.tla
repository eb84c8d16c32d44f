------------------------------ MODULE Secured ------------------------------
(* Files of a map in a bucket: writers that name them, collections that remove them, and purges, which give no grace.

Stands for: `rewriting`, `take_unwatched`, `wait_free`, `begin_term`, `secure` and `check_secured` of
maps/layered/secured.py; `ObjectPresence.putting` and `ObjectPresence.put_again` of stores/objects/before_bucket.py;
`purge_files` of maps/loads/bucket_purges.py; `Sweep.delete` of maps/loads/garbage.py; `Layers.swap` of
maps/layered/head.py.
A file has its content for a name, and each writer a copy of what it put. "rows" has rows that were deleted with all
their copies, and "rows anew" is made of it; "clean" has the others. The grace of a collection is over at once.
As Lease.tla goes through it, one who looked at the lease has it until the file is removed: both are one step here.
Everybody may take a holder for dead, at any time.

Faults: a writer or a remover rests between any two steps, for longer than its lease, or for ever: it died.
What is not promised: a writer that rests for longer than its mark may leave a file of purged rows. It never counts, and
goes with the garbage.
Flaws:  "no marks": a purge does not ask who makes files of rows that are there.
        "marks first": it asks in one write, and takes the lease in another one.
        "reads first": a writer reads before it puts its mark.
        "no term": a manifest counts whenever nobody holds the lease.
        "term anew": one that is refused counts in the next term, without another look at its files.
        "known for ever": a file that was put is not looked for again in another term.
        "no look at the lease": a file is removed without one. *)

EXTENDS Naturals, FiniteSets
CONSTANT Flaw

Old == {"rows", "rows anew"}
Nobody == "nobody"
Writers == {"writer"}
Removers == {"purge", "collection"}
TermsMax == 2
RevisionsMax == 2

VARIABLES lease, marks, named, revision, files, writer, remover, purged, left
state == <<lease, marks, named, revision, files, writer, remover, purged, left>>

Idle == [at |-> "idle", was |-> 0, file |-> "rows", term |-> 0, put |-> 0, begun |-> 0, lost |-> FALSE, marks |-> FALSE]
Rest == [at |-> "idle", due |-> {}, term |-> 0]

Init ==
    /\ lease = [holder |-> Nobody, term |-> 0] /\ marks = {}
    /\ named = "rows" /\ revision = 0 /\ files = {"rows"}
    /\ writer = [name \in Writers |-> Idle] /\ remover = [name \in Removers |-> Rest]
    /\ purged = FALSE /\ left = {}

(* The deletion itself: a rewrite that leaves the rows out. *)
Clean ==
    /\ named \in Old /\ revision < RevisionsMax /\ lease.holder = Nobody
    /\ named' = "clean" /\ revision' = revision + 1 /\ files' = files \cup {"clean"}
    /\ UNCHANGED <<lease, marks, writer, remover, purged, left>>

-----------------------------------------------------------------------------
(* A load of rows that are in no file puts no mark. *)
Begin(name, rewrites) ==
    /\ writer[name].at = "idle"
    /\ writer' = [writer EXCEPT ![name] = [Idle EXCEPT !.at = "begun", !.marks = rewrites,
                    !.begun = IF lease.holder = Nobody THEN lease.term ELSE 0]]
    /\ marks' = IF rewrites /\ Flaw # "reads first" THEN marks \cup {name} ELSE marks
    /\ UNCHANGED <<lease, named, revision, files, remover, purged, left>>

Made(name) == IF ~writer[name].marks THEN "loaded" ELSE IF named \in Old THEN "rows anew" ELSE "clean"

Read(name) ==
    /\ writer[name].at = "begun"
    /\ writer' = [writer EXCEPT ![name].at = IF Flaw = "reads first" THEN "unmarked" ELSE "read",
                                ![name].was = revision, ![name].file = Made(name)]
    /\ UNCHANGED <<lease, marks, named, revision, files, remover, purged, left>>

MarkLate(name) ==
    /\ writer[name].at = "unmarked"
    /\ writer' = [writer EXCEPT ![name].at = "read"]
    /\ marks' = IF writer[name].marks THEN marks \cup {name} ELSE marks
    /\ UNCHANGED <<lease, named, revision, files, remover, purged, left>>

Left(name) == IF writer[name].lost THEN left \cup ({writer[name].file} \cap Old) ELSE left

Put(name) ==
    /\ writer[name].at = "read"
    /\ files' = files \cup {writer[name].file} /\ left' = Left(name)
    /\ writer' = [writer EXCEPT ![name].at = "put", ![name].put = writer[name].begun, ![name].begun = 0]
    /\ UNCHANGED <<lease, marks, named, revision, remover, purged>>

WaitFree(name) ==
    /\ writer[name].at = "put" /\ lease.holder = Nobody
    /\ writer' = [writer EXCEPT ![name].at = "free", ![name].term = lease.term]
    /\ UNCHANGED <<lease, marks, named, revision, files, remover, purged, left>>

Secure(name) ==
    /\ writer[name].at = "free"
    /\ IF writer[name].put = writer[name].term \/ Flaw = "known for ever"
       THEN UNCHANGED <<files, left>>
       ELSE files' = files \cup {writer[name].file} /\ left' = Left(name)
    /\ writer' = [writer EXCEPT ![name].at = "secured", ![name].put = writer[name].term]
    /\ UNCHANGED <<lease, marks, named, revision, remover, purged>>

Counts(name) ==
    \/ named = writer[name].file
    \/ lease.holder = Nobody /\ (lease.term = writer[name].term \/ Flaw = "no term")

Swap(name) ==
    /\ writer[name].at = "secured" /\ revision < RevisionsMax
    /\ IF Counts(name)
       THEN /\ writer' = [writer EXCEPT ![name] = [Idle EXCEPT !.at = "ends"]]
            /\ IF writer[name].was = revision
               THEN named' = writer[name].file /\ revision' = revision + 1
               ELSE UNCHANGED <<named, revision>>
       ELSE /\ writer' = IF Flaw = "term anew" THEN [writer EXCEPT ![name].term = lease.term]
                         ELSE [writer EXCEPT ![name].at = "put", ![name].term = 0]
            /\ UNCHANGED <<named, revision>>
    /\ UNCHANGED <<lease, marks, files, remover, purged, left>>

(* It is done, or was refused: both end its mark. *)
End(name) ==
    /\ writer[name].at # "idle"
    /\ writer' = [writer EXCEPT ![name] = Idle] /\ marks' = marks \ {name}
    /\ UNCHANGED <<lease, named, revision, files, remover, purged, left>>

Die(name) ==
    /\ writer[name].at # "idle"
    /\ writer' = [writer EXCEPT ![name] = Idle]
    /\ UNCHANGED <<lease, marks, named, revision, files, remover, purged, left>>

RenewMark(name) ==
    /\ writer[name].lost /\ name \notin marks
    /\ marks' = marks \cup {name}
    /\ UNCHANGED <<lease, named, revision, files, writer, remover, purged, left>>

EndDeadMark(name) ==
    /\ name \in marks
    /\ marks' = marks \ {name} /\ writer' = [writer EXCEPT ![name].lost = writer[name].marks]
    /\ UNCHANGED <<lease, named, revision, files, remover, purged, left>>

-----------------------------------------------------------------------------
Holds(name) == lease = [holder |-> name, term |-> remover[name].term]

EndDead ==
    /\ lease.holder # Nobody
    /\ lease' = [lease EXCEPT !.holder = Nobody]
    /\ UNCHANGED <<marks, named, revision, files, writer, remover, purged, left>>

LookAtMarks ==
    /\ Flaw = "marks first" /\ remover["purge"].at = "idle" /\ marks = {}
    /\ remover' = [remover EXCEPT !["purge"].at = "looked"]
    /\ UNCHANGED <<lease, marks, named, revision, files, writer, purged, left>>

MayTake(name) ==
    IF name = "collection" THEN remover[name].at = "idle"
    ELSE /\ named \notin Old
         /\ IF Flaw = "marks first" THEN remover[name].at = "looked"
            ELSE remover[name].at = "idle" /\ (marks = {} \/ Flaw = "no marks")

Take(name) ==
    /\ MayTake(name) /\ lease.holder = Nobody /\ lease.term < TermsMax
    /\ lease' = [holder |-> name, term |-> lease.term + 1]
    /\ remover' = [remover EXCEPT ![name].at = "taken", ![name].term = lease.term + 1]
    /\ UNCHANGED <<marks, named, revision, files, writer, purged, left>>

(* A purge spares what a load may be about to enter, and nothing that has the rows. *)
List(name) ==
    /\ remover[name].at = "taken"
    /\ remover' = [remover EXCEPT ![name].at = "listed", ![name].due =
            files \ ({named} \cup IF name = "purge" THEN {"loaded"} ELSE {})]
    /\ UNCHANGED <<lease, marks, named, revision, files, writer, purged, left>>

(* The look at the lease, and what it allows. *)
Remove(name, file) ==
    /\ remover[name].at = "listed" /\ file \in remover[name].due
    /\ IF Holds(name) \/ Flaw = "no look at the lease"
       THEN files' = files \ {file} /\ remover' = [remover EXCEPT ![name].due = @ \ {file}]
       ELSE files' = files /\ remover' = [remover EXCEPT ![name].at = "ends"]
    /\ UNCHANGED <<lease, marks, named, revision, writer, purged, left>>

GiveBack(name) ==
    /\ remover[name].at = "ends" \/ (remover[name].at = "listed" /\ remover[name].due = {})
    /\ lease' = IF Holds(name) THEN [lease EXCEPT !.holder = Nobody] ELSE lease
    /\ purged' = (purged \/ (name = "purge" /\ Holds(name) /\ remover[name].due = {}))
    /\ remover' = [remover EXCEPT ![name] = Rest]
    /\ UNCHANGED <<marks, named, revision, files, writer, left>>

-----------------------------------------------------------------------------
Next ==
    \/ Clean \/ EndDead \/ LookAtMarks
    \/ \E name \in Writers :
        \/ Begin(name, TRUE) \/ Begin(name, FALSE) \/ Read(name) \/ MarkLate(name) \/ Put(name) \/ WaitFree(name) \/ Secure(name) \/ Swap(name)
        \/ End(name) \/ Die(name) \/ RenewMark(name) \/ EndDeadMark(name)
    \/ \E name \in Removers :
        \/ Take(name) \/ List(name) \/ GiveBack(name)
        \/ \E file \in Old \cup {"clean", "loaded"} : Remove(name, file)

Spec == Init /\ [][Next]_state

WhatCountsIsThere == named \in files
PurgedRowsAreGone == purged => files \cap Old \subseteq left
=============================================================================
