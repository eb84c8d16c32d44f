----------------------------- MODULE DaySwitch -----------------------------
(* A closed day of a stream of events is compressed: its raw rows are replaced by batches, while others read it.

Stands for: `switch_segments`, `replace_rows`, `check_listed` and `_finish` of events/embedded/day_switch.py and
`expire_days` of events/embedded/expire.py; `switch_segments`, `_put` and `expire_days` of events/redis/day_switch.py,
with events/redis/scripts/switch.lua and events/redis/scripts/expire.lua; pages of readers. Rows are replaced batch by
batch. A day that goes is listed as dropped at once, while its rows may go by and by, but in Redis.
In Redis the list of segments says how far a day is
compressed, and whoever comes next goes on there; elsewhere it begins anew. Events are numbers from 1 on, a row is the
set of its events; the kind of store is chosen at the beginning. Two compressors cut batches of different sizes, so that
batches end within rows of the other. In Redis the row in which a batch ends is skipped up to there by readers.

Faults: a compressor dies between any two steps; two of them work at once; the day is dropped, closed or
compressed, at any step.
Flaws:  "no fence": rows are replaced whatever the stream lists and holds.
        "no rest": what is left of a row in which a batch ends does not stay.
        "no place": in Redis a batch is put wherever the ones before it end.
        "half a day": a reader takes what is left of a day that is being dropped. *)

EXTENDS Naturals, FiniteSets
CONSTANT Flaw

Events == 1..4
Compressors == {"by two", "by three"}
Size(name) == IF name = "by two" THEN 2 ELSE 3
First(row) == CHOOSE event \in row : \A other \in row : event <= other
Last(row) == CHOOSE event \in row : \A other \in row : event >= other
Batch(name, after) == {event \in Events : event > after /\ event <= after + Size(name)}

VARIABLES store, rows, listed, packed, compressor, reader
state == <<store, rows, listed, packed, compressor, reader>>

IsGone == listed \in {"expired", "dropped"}
Rest == [at |-> "idle", seen |-> "", after |-> 0]

Init ==
    /\ store \in {"embedded", "redis"}
    /\ rows \in {{{event} : event \in Events}, {{1}, {2, 3}, {4}}}
    /\ listed = "closed"
    /\ packed = 0 \* up to which event Redis lists batches
    /\ compressor = [name \in Compressors |-> Rest]
    /\ reader = [after |-> 0, fault |-> FALSE]

Begin(name) ==
    /\ compressor[name].at = "idle" /\ ~IsGone
    /\ compressor' = [compressor EXCEPT ![name] = [Rest EXCEPT !.at = "works", !.seen = listed, !.after = packed]]
    /\ UNCHANGED <<store, rows, listed, packed, reader>>

-----------------------------------------------------------------------------
(* `replace_rows`: rows from the first event of the batch to its last; the rest of the last of them stays. *)
Replace(name) ==
    LET is == compressor[name]
        batch == Batch(name, is.after)
        found == {row \in rows : First(row) >= First(batch) /\ First(row) <= Last(batch)}
        met == {row \in rows : Last(row) >= First(batch) /\ First(row) <= Last(batch)}
        rest == {event \in UNION met : event > Last(batch)}
        fits == listed = is.seen /\ met # {} /\ met = found /\ UNION met = batch \cup rest
        ended == is.after + Size(name) >= Cardinality(Events)
    IN /\ store = "embedded" /\ is.at = "works"
       /\ IF fits \/ Flaw = "no fence"
          THEN /\ rows' = (rows \ found) \cup {batch} \cup
                          (IF rest = {} \/ Flaw = "no rest" THEN {} ELSE {rest})
               /\ listed' = IF ended THEN "compressed" ELSE listed
               /\ compressor' = [compressor EXCEPT ![name] =
                    IF ended THEN Rest ELSE [is EXCEPT !.after = @ + Size(name)]]
          ELSE /\ compressor' = [compressor EXCEPT ![name] = Rest]
               /\ UNCHANGED <<rows, listed>>
       /\ UNCHANGED <<store, packed, reader>>

-----------------------------------------------------------------------------
(* switch.lua: the rows that end up to the last event of the batch go; one that goes on counts from behind it. *)
Put(name) ==
    LET is == compressor[name]
        batch == Batch(name, is.after)
        behind == {row \ 1..Last(batch) : row \in {row \in rows : Last(row) > Last(batch)}}
        before == {row \in rows : Last(row) <= packed}
        fits == listed = is.seen /\ (packed = is.after \/ Flaw = "no place")
        ended == is.after + Size(name) >= Cardinality(Events)
    IN /\ store = "redis" /\ is.at = "works" /\ is.after < Cardinality(Events)
       /\ IF fits \/ Flaw = "no fence"
          THEN /\ rows' = before \cup {batch} \cup
                          (IF Flaw = "no rest" THEN {row \in rows : First(row) > Last(batch)} ELSE behind)
               /\ packed' = Last(batch)
               /\ listed' = IF ended THEN "compressed" ELSE listed
               /\ compressor' = [compressor EXCEPT ![name] =
                    IF ended THEN Rest ELSE [is EXCEPT !.after = @ + Size(name)]]
          ELSE /\ compressor' = [compressor EXCEPT ![name] = Rest]
               /\ UNCHANGED <<rows, listed, packed>>
       /\ UNCHANGED <<store, reader>>

-----------------------------------------------------------------------------
Drop ==
    /\ listed # "dropped"
    /\ \E last \in IF store = "redis" THEN {Cardinality(Events)} ELSE {First(row) : row \in rows} \cup {0} :
        LET left == {row \in rows : First(row) > last}
        IN rows' = left /\ listed' = IF left = {} THEN "dropped" ELSE "expired"
    /\ UNCHANGED <<store, packed, compressor, reader>>

(* A page: the row with the next event, from behind the reader's position on. A dropped day is passed over. *)
Read ==
    LET left == {row \in rows : Last(row) > reader.after}
        next == CHOOSE row \in left : \A other \in left : Last(row) <= Last(other)
        page == {event \in next : event > reader.after}
    IN /\ left # {} /\ ~reader.fault /\ (~IsGone \/ Flaw = "half a day")
       /\ reader' = [after |-> Last(page), fault |-> page # (reader.after + 1)..Last(page)]
       /\ UNCHANGED <<store, rows, listed, packed, compressor>>

Die(name) ==
    /\ compressor[name].at # "idle"
    /\ compressor' = [compressor EXCEPT ![name] = Rest]
    /\ UNCHANGED <<store, rows, listed, packed, reader>>

Next ==
    \/ Drop \/ Read
    \/ \E name \in Compressors : Begin(name) \/ Replace(name) \/ Put(name) \/ Die(name)

Spec == Init /\ [][Next]_state

EachEventIsThereOnce ==
    /\ IF listed = "dropped" THEN rows = {} ELSE IsGone \/ UNION rows = Events
    /\ \A one \in rows, other \in rows : one = other \/ one \cap other = {}
AReaderMissesNothing == ~reader.fault
=============================================================================
