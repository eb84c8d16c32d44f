-------------------------------- MODULE Loads --------------------------------
(* Loads are entered by a primary, entered by replicas, acknowledged, and survive the promotion of another primary.

Stands for: `Fence` of nodes/membership/fence.py; `promote_without_primary` and `give_promise` of nodes/promotion.py;
`StoredLists.append` of nodes/membership/stored_lists.py; `LogApplier.next_page` and `LogApplier.clone` of
nodes/replication/log_apply.py; `begin_acknowledgement` of nodes/acknowledgement.py for most nodes. Three nodes are
members all the time; what a node hears of others is left out, as if no word of theirs came.

Faults: a node rests between any two steps, or for ever: it is down, or cut off; two nodes are promoted at once; the
answer of a promise is lost, and it is asked for again; a log that went its own way is replaced by a copy.
Flaws:  "promises are forgotten": a node enters entries of the old primary after it promised to follow another one.
        "any length": a node becomes the primary though another one that promised has more.
        "one promise": a node becomes the primary with its own promise alone. *)

EXTENDS Naturals, Sequences, FiniteSets
CONSTANT Flaw

Nodes == {"n1", "n2", "n3"}
Candidates == {"n2", "n3"}
Epochs == 1..2
LoadsMax == 1
Most(nodes) == 2 * Cardinality(nodes) > Cardinality(Nodes)

VARIABLES logs, entered, promise, stands, votes, adopted, confirmed
state == <<logs, entered, promise, stands, votes, adopted, confirmed>>

(* An entry is a load with its number, or with 0 the list that names a primary from an epoch on. *)
Entry(load, epoch, primary) == [load |-> load, epoch |-> epoch, primary |-> primary]
Lists(log) == {at \in DOMAIN log : log[at].load = 0}
LastList(log) ==
    IF Lists(log) = {} THEN Entry(0, 0, "n1")
    ELSE log[CHOOSE at \in Lists(log) : \A other \in Lists(log) : other <= at]
Epoch(node) == LastList(logs[node]).epoch
Primary(node) == LastList(logs[node]).primary
IsBeginning(one, other) == Len(one) <= Len(other) /\ SubSeq(other, 1, Len(one)) = one
Has(node, load) == \E at \in DOMAIN logs[node] : logs[node][at].load = load
Acknowledged == {load \in 1..LoadsMax : Most(confirmed[load])}

Init ==
    /\ logs = [node \in Nodes |-> <<>>]
    /\ entered = 0
    /\ promise = [node \in Nodes |-> [epoch |-> 0, candidate |-> ""]]
    /\ stands = [node \in Candidates |-> 0] \* the epoch that a candidate asks promises for
    /\ votes = [node \in Candidates |-> {}]
    /\ adopted = [epoch \in 0..2 |-> IF epoch = 0 THEN Nodes ELSE {}]
    /\ confirmed = [load \in 1..LoadsMax |-> {}]

Adopt(node, list) == adopted' = IF list.load = 0 THEN [adopted EXCEPT ![list.epoch] = @ \cup {node}] ELSE adopted

(* `Fence.appends` of a primary that heard of nothing. *)
Appends(node) ==
    Primary(node) = node /\ promise[node].epoch <= Epoch(node) /\ Most(adopted[Epoch(node)])

Load(node) ==
    /\ Appends(node) /\ entered < LoadsMax
    /\ entered' = entered + 1
    /\ logs' = [logs EXCEPT ![node] = Append(@, Entry(entered + 1, 0, ""))]
    /\ UNCHANGED <<promise, stands, votes, adopted, confirmed>>

MayFollow(node, source) ==
    \/ promise[node].epoch <= Epoch(node) \/ Epoch(source) > promise[node].epoch
    \/ Epoch(source) = promise[node].epoch /\ Primary(source) = promise[node].candidate
    \/ Flaw = "promises are forgotten"

Enter(node, source) ==
    /\ Primary(source) = source \/ Epoch(source) > Epoch(node)
    /\ MayFollow(node, source)
    /\ Len(logs[node]) < Len(logs[source]) /\ IsBeginning(logs[node], logs[source])
    /\ LET entry == logs[source][Len(logs[node]) + 1]
       IN logs' = [logs EXCEPT ![node] = Append(@, entry)] /\ Adopt(node, entry)
    /\ UNCHANGED <<entered, promise, stands, votes, confirmed>>

Copy(node, source) ==
    /\ Epoch(source) > Epoch(node) /\ MayFollow(node, source) /\ ~IsBeginning(logs[node], logs[source])
    /\ logs' = [logs EXCEPT ![node] = logs[source]]
    /\ Adopt(node, LastList(logs[source]))
    /\ UNCHANGED <<entered, promise, stands, votes, confirmed>>

Confirm(node, load) ==
    /\ node \notin confirmed[load] /\ Has(node, load)
    /\ confirmed' = [confirmed EXCEPT ![load] = @ \cup {node}]
    /\ UNCHANGED <<logs, entered, promise, stands, votes, adopted>>

-----------------------------------------------------------------------------
(* A candidate promises itself first; a vote is the end of a log at the moment of its promise. *)
Vote(node) == [node |-> node, epoch |-> Epoch(node), log |-> logs[node]]

Stand(node, epoch) ==
    /\ node \in Candidates /\ epoch > Epoch(node) /\ epoch > promise[node].epoch
    /\ promise' = [promise EXCEPT ![node] = [epoch |-> epoch, candidate |-> node]]
    /\ stands' = [stands EXCEPT ![node] = epoch]
    /\ votes' = [votes EXCEPT ![node] = {}]
    /\ UNCHANGED <<logs, entered, adopted, confirmed>>

Promise(node, candidate) ==
    LET asked == [epoch |-> stands[candidate], candidate |-> candidate]
    IN /\ node # candidate /\ asked.epoch > Epoch(node)
       /\ asked.epoch > promise[node].epoch \/ asked = promise[node]
       /\ promise' = [promise EXCEPT ![node] = asked]
       /\ votes' \in {votes, [votes EXCEPT ![candidate] = {vote \in @ : vote.node # node} \cup {Vote(node)}]}
       /\ UNCHANGED <<logs, entered, stands, adopted, confirmed>>

(* A candidate may have promised another one a later epoch meanwhile: then it is no primary that appends. *)
Promote(node) ==
    LET longer == {vote \in votes[node] :
            vote.epoch > Epoch(node) \/ (vote.epoch = Epoch(node) /\ Len(vote.log) > Len(logs[node]))}
        counted == {vote.node : vote \in {vote \in votes[node] : IsBeginning(vote.log, logs[node])}}
        epoch == stands[node]
    IN /\ node \in Candidates /\ epoch > Epoch(node)
       /\ IF Flaw = "any length" THEN Most({vote.node : vote \in votes[node]} \cup {node})
          ELSE longer = {} /\ (Most(counted \cup {node}) \/ Flaw = "one promise")
       /\ logs' = [logs EXCEPT ![node] = Append(@, Entry(0, epoch, node))]
       /\ adopted' = [adopted EXCEPT ![epoch] = @ \cup {node}]
       /\ UNCHANGED <<entered, promise, stands, votes, confirmed>>

Next == \E node \in Nodes :
    \/ Load(node) \/ Promote(node)
    \/ \E epoch \in Epochs : Stand(node, epoch)
    \/ \E load \in 1..LoadsMax : Confirm(node, load)
    \/ \E other \in Nodes : Enter(node, other) \/ Copy(node, other)
    \/ \E candidate \in Candidates : Promise(node, candidate)

Spec == Init /\ [][Next]_state

NothingAcknowledgedIsLost ==
    \A node \in Nodes : Primary(node) = node /\ Epoch(node) > 0 =>
        \A load \in Acknowledged : Has(node, load) \/ \E later \in Nodes : Epoch(later) > Epoch(node)
OnePrimaryAppends ==
    \A one \in Nodes, other \in Nodes : Appends(one) /\ Appends(other) /\ Epoch(one) = Epoch(other) => one = other
=============================================================================
