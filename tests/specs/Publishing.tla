----------------------------- MODULE Publishing -----------------------------
(* Files named by their content, rows that name them, and collections that delete what no row names.

Stands for: versions/staging/publishing.py (`collections`, `check_published`, `publish`, `check_there`,
`begin_collecting`, `renew_collecting`, `end_collecting`), `_collect_ranges` and `_delete_ranges` of versions/collect.py,
`move_head` of staging/heads.py. One row names the file, or none does; grace times of readers are left out, as if over.
It is assumed that a file is deleted within the lease that was looked at for it.

Faults: a builder or a collection rests between any two steps, for longer than a lease, or for ever: it died.
Flaws:  "no count": a swap looks only whether a collection deletes at that moment.
        "no second look": a collection deletes what it found before it began to delete.
        "early clock": a lease is renewed by a time that was read before the transaction.
        "clock ahead": the clock of the builder is a lease ahead of the collections'. *)

EXTENDS Naturals, FiniteSets
CONSTANT Flaw

Files == {"x"}
None == "none"
Collections == {"collection 1", "collection 2"}
Lease == 2
Deleting == 99
Late == IF Flaw = "clock ahead" THEN 2 ELSE 3

VARIABLES now, count, until, named, revision, files, builder, collection
state == <<now, count, until, named, revision, files, builder, collection>>

Rest == [at |-> "idle", found |-> {}, until |-> 0, clock |-> 0]

Init ==
    /\ now = 0 /\ count = 0 /\ until = 0
    /\ named = "x" /\ revision = 0 /\ files = {"x"}
    /\ builder = [at |-> "idle", count |-> 0, was |-> 0, file |-> None]
    /\ collection = [name \in Collections |-> Rest]

Tick == now < Late /\ now' = now + 1 /\ UNCHANGED <<count, until, named, revision, files, builder, collection>>

(* Another state takes the place of the one that is named, by a commit or a reset of somebody else. *)
Replace ==
    /\ named # None /\ revision < 3
    /\ named' = None /\ revision' = revision + 1
    /\ UNCHANGED <<now, count, until, files, builder, collection>>

-----------------------------------------------------------------------------
BuilderSees(time) == (IF Flaw = "clock ahead" THEN now + Lease ELSE now) >= time
Counted == IF BuilderSees(until) THEN count ELSE Deleting

Begin ==
    /\ builder.at = "idle"
    /\ builder' = [builder EXCEPT !.at = "counted", !.count = Counted]
    /\ UNCHANGED <<now, count, until, named, revision, files, collection>>

Take ==
    /\ builder.at = "counted"
    /\ builder' = [builder EXCEPT !.at = "taken", !.was = revision]
    /\ UNCHANGED <<now, count, until, named, revision, files, collection>>

(* `put_content`: a file that lies there is not written again. *)
Build(file) ==
    /\ builder.at = "taken"
    /\ files' = files \cup {file}
    /\ builder' = [builder EXCEPT !.at = "built", !.file = file]
    /\ UNCHANGED <<now, count, until, named, revision, collection>>

Swap ==
    /\ builder.at = "built" /\ revision < 3
    /\ IF (Flaw = "no count" \/ builder.count = count) /\ BuilderSees(until)
       THEN /\ builder' = [builder EXCEPT !.at = "idle"]
            /\ IF builder.was = revision
               THEN named' = builder.file /\ revision' = revision + 1
               ELSE UNCHANGED <<named, revision>>
       ELSE /\ builder' \in {[builder EXCEPT !.at = "idle"], [builder EXCEPT !.at = "refused"]}
            /\ UNCHANGED <<named, revision>>
    /\ UNCHANGED <<now, count, until, files, collection>>

(* `publish` counts anew, then looks whether the files are there. *)
CountAgain ==
    /\ builder.at = "refused" /\ Counted # Deleting
    /\ builder' = [builder EXCEPT !.at = "counted again", !.count = Counted]
    /\ UNCHANGED <<now, count, until, named, revision, files, collection>>

LookAgain ==
    /\ builder.at = "counted again"
    /\ builder' = [builder EXCEPT !.at = IF builder.file \in files THEN "built" ELSE "idle"]
    /\ UNCHANGED <<now, count, until, named, revision, files, collection>>

-----------------------------------------------------------------------------
Mark(name) ==
    /\ collection[name].at = "idle"
    /\ collection' = [collection EXCEPT ![name] = [Rest EXCEPT !.at = "marked", !.found = files \ {named}]]
    /\ UNCHANGED <<now, count, until, named, revision, files, builder>>

BeginCollecting(name) ==
    /\ collection[name].at = "marked" /\ collection[name].found # {} /\ now >= until /\ count < 3
    /\ count' = count + 1 /\ until' = now + Lease
    /\ collection' = [collection EXCEPT ![name].at = "deleting", ![name].until = now + Lease]
    /\ UNCHANGED <<now, named, revision, files, builder>>

Look(name) ==
    /\ collection[name].at = "deleting"
    /\ collection' = [collection EXCEPT ![name].at = "looked",
                        ![name].found = IF Flaw = "no second look" THEN @ ELSE @ \ {named}]
    /\ UNCHANGED <<now, count, until, named, revision, files, builder>>

ReadClock(name) ==
    /\ Flaw = "early clock" /\ collection[name].at = "looked" /\ collection[name].found # {}
    /\ collection' = [collection EXCEPT ![name].at = "renews", ![name].clock = now]
    /\ UNCHANGED <<now, count, until, named, revision, files, builder>>

Renew(name) ==
    LET is == collection[name]
        clock == IF Flaw = "early clock" THEN is.clock ELSE now
    IN /\ is.at = IF Flaw = "early clock" THEN "renews" ELSE "looked"
       /\ is.found # {}
       /\ IF until # is.until \/ clock >= is.until
          THEN collection' = [collection EXCEPT ![name] = Rest] /\ UNCHANGED until
          ELSE /\ until' = clock + Lease
               /\ collection' = [collection EXCEPT ![name].at = "renewed", ![name].until = clock + Lease]
       /\ UNCHANGED <<now, count, named, revision, files, builder>>

Delete(name, file) ==
    LET is == collection[name]
    IN /\ is.at = "renewed" /\ file \in is.found /\ now < is.until
       /\ files' = files \ {file}
       /\ collection' = [collection EXCEPT ![name].at = "looked", ![name].found = @ \ {file}]
       /\ UNCHANGED <<now, count, until, named, revision, builder>>

EndCollecting(name) ==
    /\ collection[name].at = "looked" /\ collection[name].found = {}
    /\ until' = IF until = collection[name].until THEN 0 ELSE until
    /\ collection' = [collection EXCEPT ![name] = Rest]
    /\ UNCHANGED <<now, count, named, revision, files, builder>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick \/ Replace
    \/ Begin \/ Take \/ Swap \/ CountAgain \/ LookAgain
    \/ \E file \in Files : Build(file)
    \/ \E name \in Collections :
        \/ Mark(name) \/ BeginCollecting(name) \/ Look(name) \/ ReadClock(name) \/ Renew(name) \/ EndCollecting(name)
        \/ \E file \in Files : Delete(name, file)

Spec == Init /\ [][Next]_state

WhatIsNamedIsThere == named \in files \cup {None}
=============================================================================
