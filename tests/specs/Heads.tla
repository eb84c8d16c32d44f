------------------------------- MODULE Heads -------------------------------
(* The head of a branch, moved by committers of several processes while others write, compact and reset.

Stands for: `move_head`, `_is_still`, `_swap` and `collect_tokens` of versions/staging/branch_head.py; `commit_staged`
and `no_changes` of versions/commits.py; `sealed` and `put_branch` of versions/staging/branches.py; `compact`, `_begin`
and `_switch` of versions/compaction.py; `reset_all` of versions/resets.py. An index is the set of its writes. Commits
of some paths only, which leave a segment, are left out.
Turns are left out, as if every lease of one were over: they only save work, so nothing may depend on them.

Faults: a process rests between any two steps, or for ever: it died; rows of tokens are swept while they are read.
Flaws:  "no comparison": a head is swapped whatever the branch has become.
        "refuses at once": a build that found nothing to commit is not compared with the branch that there is now. *)

EXTENDS Naturals, Sequences, FiniteSets
CONSTANT Flaw

Writes == 1..2
Committers == {"commit 1", "commit 2"}
Processes == Committers \cup {"compaction"}
Tokens == 0..2
None == {0}

VARIABLES branch, rows, fresh, dropped, acknowledged, forgotten, process
state == <<branch, rows, fresh, dropped, acknowledged, forgotten, process>>

Base(b) == IF b.compacted = None THEN b.head ELSE b.compacted
Content == Base(branch) \cup rows[branch.token] \cup UNION {rows[branch.sealed[at]] : at \in DOMAIN branch.sealed}
Idle == [at |-> "idle", was |-> branch, left |-> <<>>, seen |-> {}, before |-> {}]

Init ==
    /\ branch = [commit |-> 0, head |-> {}, token |-> 0, sealed |-> <<>>, compacted |-> None]
    /\ rows = [token \in Tokens |-> {}]
    /\ fresh = 1
    /\ dropped = {} /\ acknowledged = {} /\ forgotten = {}
    /\ process = [name \in Processes |-> Idle]

Put(write) ==
    /\ write \notin acknowledged
    /\ rows' = [rows EXCEPT ![branch.token] = @ \cup {write}]
    /\ acknowledged' = acknowledged \cup {write}
    /\ UNCHANGED <<branch, fresh, dropped, forgotten, process>>

(* The staging token is sealed, unless it is empty; what is to be read is noted, and what the caller knows of. *)
Seal(name) ==
    /\ process[name].at \in {"idle", "again"}
    /\ LET empty == rows[branch.token] = {}
           was == IF empty THEN branch
                  ELSE [branch EXCEPT !.token = fresh, !.sealed = <<branch.token>> \o branch.sealed]
           before == IF process[name].at = "again" THEN process[name].before ELSE acknowledged
       IN /\ empty \/ fresh \in Tokens
          /\ fresh' = IF empty THEN fresh ELSE fresh + 1
          /\ branch' = was
          /\ process' = [process EXCEPT ![name] =
                [at |-> "reads", was |-> was, left |-> was.sealed, seen |-> Base(was), before |-> before]]
    /\ UNCHANGED <<rows, dropped, acknowledged, forgotten>>

Read(name) ==
    /\ process[name].at = "reads" /\ process[name].left # <<>>
    /\ process' = [process EXCEPT ![name].seen = @ \cup rows[Head(process[name].left)], ![name].left = Tail(@)]
    /\ UNCHANGED <<branch, rows, fresh, dropped, acknowledged, forgotten>>

(* `_is_still`: the branch is what it was, but for layers on top. *)
Still(was) ==
    LET newer == Len(branch.sealed) - Len(was.sealed)
    IN /\ branch.commit = was.commit /\ branch.compacted = was.compacted /\ newer >= 0
       /\ SubSeq(branch.sealed, newer + 1, Len(branch.sealed)) = was.sealed

Layers(was) == {was.sealed[at] : at \in DOMAIN was.sealed}

Swap(name) ==
    LET is == process[name]
        Newer(layer) == layer \notin Layers(is.was)
    IN /\ name \in Committers /\ is.at = "reads" /\ is.left = <<>> /\ is.seen # is.was.head
       /\ IF Still(is.was) \/ Flaw = "no comparison"
          THEN /\ branch' = [branch EXCEPT !.commit = @ + 1, !.head = is.seen, !.compacted = None,
                                           !.sealed = SelectSeq(@, Newer)]
               /\ dropped' = dropped \cup Layers(is.was)
               /\ process' = [process EXCEPT ![name].at = "answered"]
          ELSE /\ process' = [process EXCEPT ![name].at = "again"]
               /\ UNCHANGED <<branch, dropped>>
       /\ UNCHANGED <<rows, fresh, acknowledged, forgotten>>

(* `no_changes` names the head: what its caller wrote before is in there. *)
Refuse(name) ==
    LET is == process[name]
    IN /\ name \in Committers /\ is.at = "reads" /\ is.left = <<>> /\ is.seen = is.was.head
       /\ process' = [process EXCEPT ![name].at =
                        IF Still(is.was) \/ Flaw = "refuses at once" THEN "answered" ELSE "again"]
       /\ UNCHANGED <<branch, rows, fresh, dropped, acknowledged, forgotten>>

Switch ==
    LET is == process["compaction"]
    IN /\ is.at = "reads" /\ is.left = <<>>
       /\ IF /\ is.was.sealed # <<>>
             /\ <<branch.commit, branch.sealed, branch.compacted>> = <<is.was.commit, is.was.sealed, is.was.compacted>>
          THEN /\ branch' = [branch EXCEPT !.sealed = <<>>,
                                           !.compacted = IF is.seen = branch.head THEN None ELSE is.seen]
               /\ dropped' = dropped \cup Layers(is.was)
          ELSE UNCHANGED <<branch, dropped>>
       /\ process' = [process EXCEPT !["compaction"].at = "idle"]
       /\ UNCHANGED <<rows, fresh, acknowledged, forgotten>>

Reset ==
    /\ fresh \in Tokens
    /\ branch' = [branch EXCEPT !.token = fresh, !.sealed = <<>>, !.compacted = None]
    /\ fresh' = fresh + 1
    /\ forgotten' = forgotten \cup (Content \ branch.head)
    /\ dropped' = dropped \cup {branch.token} \cup {branch.sealed[at] : at \in DOMAIN branch.sealed}
    /\ UNCHANGED <<rows, acknowledged, process>>

Sweep(token) ==
    /\ token \in dropped /\ rows[token] # {}
    /\ rows' = [rows EXCEPT ![token] = {}]
    /\ UNCHANGED <<branch, fresh, dropped, acknowledged, forgotten, process>>

Next ==
    \/ \E write \in Writes : Put(write)
    \/ \E name \in Processes : Seal(name) \/ Read(name)
    \/ \E name \in Committers : Swap(name) \/ Refuse(name)
    \/ Switch \/ Reset
    \/ \E token \in Tokens : Sweep(token)

Spec == Init /\ [][Next]_state

NothingIsLost == acknowledged \ forgotten \subseteq Content
NothingComesBack == forgotten \cap Content = {}
AnAnswerIsTrue ==
    \A name \in Committers : process[name].at = "answered" => process[name].before \ forgotten \subseteq branch.head
=============================================================================
