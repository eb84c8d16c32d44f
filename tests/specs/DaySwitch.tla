----------------------------- MODULE DaySwitch -----------------------------
(* A closed day of a stream of events is compressed: its raw rows are replaced by batches, while others read it.

Stands for: `switch_segments` of events/embedded/switch.py, which replaces rows batch by batch, and of
events/redis/switch.py with its scripts, which stages batches and puts them all in the place of the rows at once;
`expire` of both; pages of readers. Events are numbers from 1 on, a row is the set of its events; the kind of store is
chosen at the beginning. Two compressors cut batches of different sizes, so that batches end within rows of the other.

Faults: a compressor dies between any two steps; two of them work at once; staged batches vanish; the day is dropped.
Flaws:  "no fence": rows are replaced whatever the stream lists and holds.
        "no rest": what is left of a row in which a batch ends does not stay.
        "no count": staged batches are put in place though some vanished. *)

EXTENDS Naturals, FiniteSets
CONSTANT Flaw

Events == 1..4
Compressors == {"by two", "by three"}
Size(name) == IF name = "by two" THEN 2 ELSE 3
First(row) == CHOOSE event \in row : \A other \in row : event <= other
Last(row) == CHOOSE event \in row : \A other \in row : event >= other
Batch(name, after) == {event \in Events : event > after /\ event <= after + Size(name)}

VARIABLES store, rows, listed, compressor, reader
state == <<store, rows, listed, compressor, reader>>

Rest == [at |-> "idle", seen |-> "", after |-> 0, staged |-> {}, stages |-> 0]

Init ==
    /\ store \in {"embedded", "redis"}
    /\ rows = {{event} : event \in Events}
    /\ listed = "closed"
    /\ compressor = [name \in Compressors |-> Rest]
    /\ reader = [after |-> 0, fault |-> FALSE]

Begin(name) ==
    /\ compressor[name].at = "idle" /\ listed # "dropped"
    /\ compressor' = [compressor EXCEPT ![name] = [Rest EXCEPT !.at = "works", !.seen = listed]]
    /\ UNCHANGED <<store, rows, listed, reader>>

-----------------------------------------------------------------------------
(* `_replace_rows`: rows from the first event of the batch to its last; the rest of the last of them stays. *)
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
       /\ UNCHANGED <<store, reader>>

-----------------------------------------------------------------------------
Stage(name) ==
    LET is == compressor[name]
    IN /\ store = "redis" /\ is.at = "works" /\ is.after < Cardinality(Events)
       /\ compressor' = [compressor EXCEPT ![name] =
            [is EXCEPT !.staged = @ \cup {Batch(name, is.after)}, !.stages = @ + 1, !.after = @ + Size(name)]]
       /\ UNCHANGED <<store, rows, listed, reader>>

Vanish(name) ==
    /\ compressor[name].staged # {}
    /\ compressor' = [compressor EXCEPT ![name].staged = {}]
    /\ UNCHANGED <<store, rows, listed, reader>>

Switch(name) ==
    LET is == compressor[name]
        whole == Cardinality(is.staged) = is.stages \/ Flaw = "no count"
    IN /\ store = "redis" /\ is.at = "works" /\ is.after >= Cardinality(Events)
       /\ IF whole /\ (listed = is.seen \/ Flaw = "no fence")
          THEN rows' = is.staged /\ listed' = "compressed"
          ELSE UNCHANGED <<rows, listed>>
       /\ compressor' = [compressor EXCEPT ![name] = Rest]
       /\ UNCHANGED <<store, reader>>

-----------------------------------------------------------------------------
Drop ==
    /\ listed = "compressed"
    /\ listed' = "dropped" /\ rows' = {}
    /\ UNCHANGED <<store, compressor, reader>>

(* A page: the row with the next event, from behind the reader's position on. A dropped day is passed over. *)
Read ==
    LET left == {row \in rows : Last(row) > reader.after}
        next == CHOOSE row \in left : \A other \in left : Last(row) <= Last(other)
        page == {event \in next : event > reader.after}
    IN /\ left # {} /\ ~reader.fault
       /\ reader' = [after |-> Last(page), fault |-> page # (reader.after + 1)..Last(page)]
       /\ UNCHANGED <<store, rows, listed, compressor>>

Die(name) ==
    /\ compressor[name].at # "idle"
    /\ compressor' = [compressor EXCEPT ![name] = Rest]
    /\ UNCHANGED <<store, rows, listed, reader>>

Next ==
    \/ Drop \/ Read
    \/ \E name \in Compressors : Begin(name) \/ Replace(name) \/ Die(name)
                               \/ Stage(name) \/ Vanish(name) \/ Switch(name)

Spec == Init /\ [][Next]_state

EachEventIsThereOnce ==
    /\ UNION rows = IF listed = "dropped" THEN {} ELSE Events
    /\ \A one \in rows, other \in rows : one = other \/ one \cap other = {}
AReaderMissesNothing == ~reader.fault
=============================================================================
