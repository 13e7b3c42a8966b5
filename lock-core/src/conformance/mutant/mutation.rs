//! [`Mutation`]: what a store can do wrong.

macro_rules! mutations {
    (
        stores { $($(#[$doc:meta])* $mutation:ident,)* }
        replicas { $($(#[$its_doc:meta])* $its:ident,)* }
    ) => {
        /// One thing that a store can do wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Mutation { $($(#[$doc])* $mutation,)* $($(#[$its_doc])* $its,)* }

        impl Mutation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$mutation,)* $(Self::$its,)*];

            /// Whether it is one in dealing with replicas.
            #[must_use]
            pub fn is_of_replicas(self) -> bool {
                matches!(self, $(Self::$its)|*)
            }
        }
    };
}

mutations! {
    stores {
        /// Grants a lock that somebody else holds.
        AlwaysGrants,
        /// Grants nothing.
        NeverGrants,
        /// Keeps a lock for an hour, whatever lease was asked for.
        NeverExpires,
        /// Keeps a lock for a tenth of the lease.
        ShortLease,
        /// Takes names that differ in case, or in blanks, for one.
        NamesCollide,
        /// Reports a held lock as a failure.
        BusyIsAFailure,
        /// Says of a held lock that it will be so for an hour yet.
        BusyExaggerates,
        /// Waits in `acquire` until the lock is free.
        AcquireWaits,
        /// Turns down the repetition of an attempt that was granted.
        ResendIsBusy,
        /// Gives a repeated attempt another token.
        ResendGetsNewToken,
        /// Leaves the lease of a repeated attempt as it was.
        ResendKeepsOldLease,
        /// Sets the lease of a repeated attempt, also if that shortens it.
        ResendShortens,
        /// Frees what a stranger holds.
        ReleasesForOtherOwners,
        /// Says that it has freed a lock, and keeps it.
        ReleaseForgets,
        /// Frees a lock and says that it was gone.
        ReleaseDenies,
        /// Says `Freed` of whatever was not held.
        ReleaseAlwaysFreed,
        /// Leaves no tombstone.
        TombstoneIgnored,
        /// Leaves a tombstone only for an owner that still holds the lock.
        TombstoneOnlyIfHeld,
        /// Forgets a tombstone after a tenth of the lease.
        TombstoneFades,
        /// Turns everybody down because of one owner's tombstone.
        TombstoneClosesAll,
        /// Leaves the tombstone, but not the lock.
        TombstoneKeepsTheLock,
        /// Brings back what it is asked to renew.
        RenewalRevives,
        /// Sets the lease, also if that shortens it.
        RenewalShortens,
        /// Says `Extended` and does nothing.
        RenewalDoesNothing,
        /// Extends what a stranger holds.
        RenewsForOtherOwners,
        /// Says `Extended` of what is gone.
        RenewalClaimsExtended,
        /// Extends, and says that it is gone.
        RenewalSaysGone,
        /// Gives up a batch at the first that is gone.
        BatchAborts,
        /// Renews the first ten of a batch.
        BatchTruncated,
        /// Answers a batch back to front.
        BatchOutOfOrder,
        /// Grants without a token.
        TokensMissing,
        /// Grants with a token that nobody asked for.
        TokensUnasked,
        /// Gives the same token again.
        TokenRepeats,
        /// Counts from one again when the counter was lost.
        TokensFromOne,
        /// Stores the beginning of a reserved range, not its end.
        ReserveForgotten,
        /// Does not write back the last token used.
        WriteBackIgnored,
        /// Writes back one less than the last token used.
        WriteBackTooLow,
        /// Writes back for an owner that holds nothing any more.
        WriteBackByOtherOwners,
        /// Says of every lock that it is free.
        InspectSaysFree,
        /// Says that somebody else holds the lock.
        InspectMisnames,
        /// Extends what it looks at.
        InspectExtends,
        /// Always says the full lease.
        RemainingStandsStill,
        /// Says that it has freed a lock by force, and keeps it.
        ForceKeeps,
        /// Says of a free lock, too, that it was held.
        ForceAlwaysTrue,
        /// Wakes nobody at a release.
        ReleaseWakesNoWaiter,
        /// Wakes nobody at a release by force.
        ForceWakesNoWaiter,
        /// Wakes only those who watch through the same client.
        WakesOnlyItsOwn,
        /// Wakes only the first of those who watch.
        WakesOnlyOne,
        /// Is deaf for a while after `watch` has returned.
        WatchStartsLate,
        /// Calls on after the watch was dropped.
        WatchNeverEnds,
        /// Is kept alive for ever by a watch.
        WatchKeepsTheBackend,
        /// Starts a thread and forgets it.
        LeaksAThread,
    }
    replicas {
        /// Says that it has no replicas, and has some.
        ReplicasDenied,
        /// Says that enough replicas have confirmed, and asks none.
        ConfirmsUnasked,
        /// Counts replicas that are connected, whatever they have.
        CountsConnectedReplicas,
        /// Takes those replicas for all that confirm.
        AllMeansConfirmingReplicas,
        /// Asks replicas, and grants the lock whatever they say.
        InsufficientReplicasUnreported,
        /// Says of a grant that too few replicas confirmed that somebody else has the lock.
        InsufficientReplicasIsBusy,
        /// Says that it has taken back a grant that too few replicas confirmed, and keeps it.
        UnconfirmedStays,
        /// Takes the repetition of a grant for confirmed, because it wrote nothing.
        ResendNotConfirmed,
        /// Asks no replicas at renewals.
        RenewalUnconfirmed,
        /// Takes a renewal for confirmed that wrote nothing.
        UnchangedRenewalNotConfirmed,
        /// Asks of each in a batch what the one asks that needs the most.
        BatchSharesItsPolicy,
        /// Asks replicas about a lock that somebody else has, and fails if they are too few.
        BusyNeedsReplicas,
        /// Waits for replicas also where nobody asked for them.
        AlwaysAsksReplicas,
        /// Counts at once who has confirmed, and gives nobody time.
        ReplicaTimeoutIgnored,
        /// Waits for replicas beyond the end of the call.
        ReplicasAwaitedBeyondDeadline,
    }
}
