//! Moves of slots from node to node.

use super::{AGREEMENT, Cluster, TAKEOVER, info, ok};
use crate::probe::Value;
use crate::time::eventually;

/// The subcommand that moves slots atomically (Valkey 9).
const AT_ONCE: &str = "MIGRATESLOTS";

impl Cluster {
    /// Waits until the slot's next node (`to`) knows the epoch of its present node (`from`), which
    /// may be new. Otherwise the next node might take over the slot with an older epoch, and the
    /// other nodes would not accept it as the owner.
    fn wait_for_epoch(&self, from: usize, to: usize) {
        let epoch = |node: usize, field| {
            info(&mut self.nodes[node].probe(), field).and_then(|epoch| epoch.parse::<u64>().ok())
        };
        let newest = epoch(from, "cluster_my_epoch");
        eventually(
            "the next node knows the epoch of the one before",
            AGREEMENT,
            || epoch(to, "cluster_current_epoch") >= newest,
        );
    }

    /// Begins to move a slot: from now on its old node redirects requests for keys that it no
    /// longer has to the new node.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        self.wait_for_epoch(from, to);
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        ok(
            &mut self.nodes[to].probe(),
            &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source],
        );
        ok(
            &mut self.nodes[from].probe(),
            &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target],
        );
    }

    /// Moves all keys of a slot that is being moved.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (mut probe, slot) = (self.nodes[from].probe(), slot.to_string());
        loop {
            let keys = probe
                .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
                .texts();
            if keys.is_empty() {
                return;
            }
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            self.move_some(&keys, from, to);
        }
    }

    /// Moves these keys of a slot that is being moved.
    pub fn move_some(&self, keys: &[&str], from: usize, to: usize) {
        let port = self.nodes[to].port_for_nodes().to_string();
        let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let answer = self.nodes[from].probe().command(&[&head, keys].concat());
        assert!(matches!(answer, Value::Text(_)), "{answer:?}");
    }

    /// Ends the move of a slot: makes its new owner known to the new and then the old owner. The
    /// other nodes learn it from the new owner.
    pub fn end_to_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, target) = (slot.to_string(), self.id(to));
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &target];
        ok(&mut self.nodes[to].probe(), &words);
        // A node that has given away its last slot may have become a replica, which refuses the
        // command but knows the owner.
        let answer = self.nodes[from].probe().command(&words);
        let is_replica = matches!(&answer, Value::Error(why) if why.contains("only with masters"));
        assert!(
            is_replica || answer == Value::Text("OK".to_owned()),
            "{answer:?}"
        );
    }

    /// Moves many slots with their keys, one after the other, over the same two connections.
    pub fn move_slots(&self, slots: &[u16], from: usize, to: usize) {
        self.wait_for_epoch(from, to);
        let (source, target) = (self.id(from), self.id(to));
        let port = self.nodes[to].port_for_nodes().to_string();
        let (mut left, mut right) = (self.nodes[from].probe(), self.nodes[to].probe());
        for slot in slots {
            let slot = slot.to_string();
            ok(
                &mut right,
                &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source],
            );
            ok(
                &mut left,
                &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target],
            );
            loop {
                let keys = left
                    .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
                    .texts();
                if keys.is_empty() {
                    break;
                }
                let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
                let keys: Vec<_> = keys.iter().map(String::as_str).collect();
                let answer = left.command(&[&head, &keys[..]].concat());
                assert!(matches!(answer, Value::Text(_)), "{answer:?}");
            }
            ok(&mut right, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
            ok(&mut left, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
        // Wait until all nodes know the owner: if the slots were moved back before, both nodes
        // could have the same epoch, and the owner would be undecided.
        slots
            .last()
            .into_iter()
            .for_each(|slot| self.wait_for_owner(*slot, to));
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_to_move(slot, from, to);
    }

    /// Returns whether the servers have the command of [`Self::move_at_once`].
    pub fn can_move_at_once(&self) -> bool {
        let help = self.nodes[0].probe().command(&["CLUSTER", "HELP"]).texts();
        help.iter().any(|line| line.starts_with(AT_ONCE))
    }

    /// Makes the servers move a slot with all its keys atomically, so that no client gets an `ASK`
    /// redirect.
    pub fn move_at_once(&self, slot: u16, from: usize, to: usize) {
        self.wait_for_epoch(from, to);
        let (id, range) = (self.id(to), slot.to_string());
        let mut probe = self.nodes[from].probe();
        let words = [
            "CLUSTER",
            AT_ONCE,
            "SLOTSRANGE",
            &range,
            &range,
            "NODE",
            &id,
        ];
        ok(&mut probe, &words);
        eventually("the slot has been moved", TAKEOVER, || {
            let owner = self.find_owner(slot);
            if owner == Some(to) {
                return true;
            }
            // On a busy machine the migration may exceed the servers' time-out: then it is started
            // again.
            let migrations = probe.command(&["CLUSTER", "GETSLOTMIGRATIONS"]);
            let Value::List(migrations) = migrations else {
                panic!("{migrations:?}")
            };
            let newest = migrations
                .first()
                .map(|one| format!("{one:?}"))
                .unwrap_or_default();
            if newest.contains("\"failed\"") && self.find_owner(slot) == Some(from) {
                println!("a migration failed: {newest}");
                ok(&mut probe, &words);
            }
            false
        });
        self.wait_for_owner(slot, to);
    }
}
