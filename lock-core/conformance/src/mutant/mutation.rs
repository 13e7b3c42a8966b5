//! [`Mutation`]: the defects of mutants.

macro_rules! mutations {
    (
        stores { $($(#[$doc:meta])* $mutation:ident,)* }
        replicas { $($(#[$its_doc:meta])* $its:ident,)* }
    ) => {
        /// One defect of a store.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Mutation { $($(#[$doc])* $mutation,)* $($(#[$its_doc])* $its,)* }

        impl Mutation {
            /// All mutations.
            pub const ALL: &'static [Self] = &[$(Self::$mutation,)* $(Self::$its,)*];

            /// Returns whether it concerns replicas.
            #[must_use]
            pub fn is_of_replicas(self) -> bool {
                matches!(self, $(Self::$its)|*)
            }
        }
    };
}

mutations! {
    stores {
        /// Grants a lock that another owner holds.
        AlwaysGrants,
        /// Grants nothing.
        NeverGrants,
        /// Keeps a lock for an hour, whatever the lease.
        NeverExpires,
        /// Keeps a lock for a tenth of the lease.
        ShortLease,
        /// Takes names that differ in case or blanks for the same.
        NamesCollide,
        /// Reports a held lock as a failure.
        BusyIsAFailure,
        /// Reports a remaining lease of an hour.
        BusyExaggerates,
        /// Waits in `acquire` until the lock is free.
        AcquireWaits,
        /// Refuses the repetition of a granted attempt.
        ResendIsBusy,
        /// Gives a repeated attempt another token.
        ResendGetsNewToken,
        /// Leaves the lease of a repeated attempt as it was.
        ResendKeepsOldLease,
        /// Sets the lease of a repeated attempt, also if that shortens it.
        ResendShortens,
        /// Releases the lock of another owner.
        ReleasesForOtherOwners,
        /// Reports a release, and keeps the lock.
        ReleaseForgets,
        /// Releases a lock, and reports that it was gone.
        ReleaseDenies,
        /// Reports `Freed` for a lock that was not held.
        ReleaseAlwaysFreed,
        /// Leaves no tombstone.
        TombstoneIgnored,
        /// Leaves a tombstone only for an owner that still holds the lock.
        TombstoneOnlyIfHeld,
        /// Forgets a tombstone after a tenth of the lease.
        TombstoneFades,
        /// Refuses all owners because of one tombstone.
        TombstoneClosesAll,
        /// Leaves the tombstone, and does not release the lock.
        TombstoneKeepsTheLock,
        /// Recreates a lock at its renewal.
        RenewalRevives,
        /// Sets the lease, also if that shortens it.
        RenewalShortens,
        /// Reports `Extended`, and does nothing.
        RenewalDoesNothing,
        /// Renews the lock of another owner.
        RenewsForOtherOwners,
        /// Reports `Extended` for a lock that is gone.
        RenewalClaimsExtended,
        /// Renews a lock, and reports that it is gone.
        RenewalSaysGone,
        /// Shows the label of a former owner.
        LabelOfFormerOwner,
        /// Stops a batch at the first lock that is gone.
        BatchAborts,
        /// Renews the first ten of a batch.
        BatchTruncated,
        /// Answers a batch in reverse order.
        BatchOutOfOrder,
        /// Grants without a token.
        TokensMissing,
        /// Grants with a token that was not requested.
        TokensUnasked,
        /// Grants the same token again.
        TokenRepeats,
        /// Starts from one when the counter was lost.
        TokensFromOne,
        /// Stores the start of a reserved range, not its end.
        ReserveForgotten,
        /// Does not write back the last token used.
        WriteBackIgnored,
        /// Writes back one less than the last token used.
        WriteBackTooLow,
        /// Writes back for an owner that no longer holds the lock.
        WriteBackByOtherOwners,
        /// Reports every lock as free.
        InspectSaysFree,
        /// Reports another owner.
        InspectMisnames,
        /// Extends the lease of an inspected lock.
        InspectExtends,
        /// Always reports the full lease.
        RemainingStandsStill,
        /// Frees a lock that is to be kept.
        KeptLockFreed,
        /// Keeps a lock for its former owner.
        KeptLockKeepsOwner,
        /// Reports a repeated release that keeps the lock as not ours.
        RepeatedKeepDenied,
        /// Reports a forced release, and keeps the lock.
        ForceKeeps,
        /// Reports a free lock as held in a forced release.
        ForceAlwaysTrue,
        /// Does not wake watchers at a release.
        ReleaseWakesNoWaiter,
        /// Does not wake watchers at a forced release.
        ForceWakesNoWaiter,
        /// Wakes only watchers of the same client.
        WakesOnlyItsOwn,
        /// Wakes only the first watcher.
        WakesOnlyOne,
        /// Misses releases for a while after `watch` returned.
        WatchStartsLate,
        /// Still wakes a dropped watch.
        WatchNeverEnds,
        /// A watch keeps the backend alive for ever.
        WatchKeepsTheBackend,
        /// Starts a thread that does not end with the client.
        LeaksAThread,
        /// Grants a write lock beside readers.
        WriterIgnoresReaders,
        /// Grants a read lock beside a writer.
        ReaderIgnoresWriter,
        /// Keeps fair locks and mutexes of a name apart.
        KindsApart,
        /// Ends the readers with the writer that they are beside.
        WriterEndsReaders,
        /// Extends the leases of all readers with one.
        ReaderRenewsAll,
        /// Keeps readers until they release.
        ReadersNeverExpire,
        /// Lets readers in while a writer waits.
        WaitingWriterIgnored,
        /// Keeps readers out after the writer has given up.
        WaitingWriterStays,
        /// Tells of no reader of a read-write lock but the one whose lease ends last.
        InspectHidesReaders,
        /// Lets readers in when any waiting writer has given up.
        WriterEndsAnothersWait,
        /// Gives each reader a new token.
        ReaderGetsNewToken,
        /// Wakes no waiter when a share is released.
        ShareWakesNoWaiter,
        /// Leaves no tombstone for shares.
        ShareIgnoresTombstone,
        /// Grants more permits than there are.
        LimitIgnored,
        /// Keeps permits until they are released.
        PermitsNeverExpire,
        /// Takes more permits for a repeated attempt.
        PermitResendCounts,
        /// Takes a change of the limit for the limit.
        AddedLimitIsSet,
        /// Reports the release of a permit by its identity, and keeps it.
        PermitOfIdIsKept,
        /// Reports the extension of a permit by its identity, and does not extend it.
        PermitOfIdIsNotExtended,
        /// Takes one permit where all that are free are asked for.
        DrainTakesOne,
        /// Counts by the limit that each client names.
        LimitOfEachClient,
        /// Reports a forced release of shares, and keeps them.
        ForceKeepsShares,
        /// Ends the hold of a writer by a forced release of readers.
        ForceOfReadersEndsWriter,
        /// Verifies a share if there is any.
        VerifiesAnyShare,
        /// Grants a fair lock to the first that asks when it is free.
        QueueIgnored,
        /// Keeps the position of a waiter that is gone.
        DeadWaiterStays,
        /// Frees a fair lock or a write lock that is to be kept.
        KeptLockOfKindFreed,
        /// Grants permits of a fair semaphore to the first that asks for as many as are free.
        PermitsOvertaken,
        /// Grants a fair read lock to a reader behind a waiting writer.
        ReaderOvertakesWriter,
        /// Grants permits and locks of one name.
        SemaphoreBesideLock,
    }
    replicas {
        /// Reports that it has no replicas.
        ReplicasDenied,
        /// Reports enough confirmations without asking a replica.
        ConfirmsUnasked,
        /// Counts connected replicas as confirming.
        CountsConnectedReplicas,
        /// Takes the confirming replicas for all replicas.
        AllMeansConfirmingReplicas,
        /// Grants the lock whatever the replicas confirm.
        InsufficientReplicasUnreported,
        /// Reports a grant that too few replicas confirmed as busy.
        InsufficientReplicasIsBusy,
        /// Reports the release of a grant that too few replicas confirmed, and keeps it.
        UnconfirmedStays,
        /// Takes the repetition of a grant, which wrote nothing, for confirmed.
        ResendNotConfirmed,
        /// Asks no replicas at renewals.
        RenewalUnconfirmed,
        /// Takes a renewal that wrote nothing for confirmed.
        UnchangedRenewalNotConfirmed,
        /// Requires of each lock in a batch the most that one of them requires.
        BatchSharesItsPolicy,
        /// Requires confirmations for a busy answer.
        BusyNeedsReplicas,
        /// Waits for replicas without a policy.
        AlwaysAsksReplicas,
        /// Counts confirmations at once, without a wait.
        ReplicaTimeoutIgnored,
        /// Waits for replicas beyond the deadline of the call.
        ReplicasAwaitedBeyondDeadline,
    }
}
