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

            /// Returns whether the mutation concerns replicas.
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
        /// Treats names that differ only in case or in outer blanks as one name.
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
        /// Does not extend the lease at a repeated attempt.
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
        /// Stores no tombstone.
        TombstoneIgnored,
        /// Stores a tombstone only for an owner that still holds the lock.
        TombstoneOnlyIfHeld,
        /// Removes a tombstone after a tenth of the lease.
        TombstoneFades,
        /// Refuses all owners of a lock because of one owner's tombstone.
        TombstoneClosesAll,
        /// Stores the tombstone, and does not release the lock.
        TombstoneKeepsTheLock,
        /// Recreates a lock at its renewal.
        RenewalRevives,
        /// Sets the lease at a renewal, even if that shortens it.
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
        /// Reports `Gone` for all locks of a batch after the first lock that is gone.
        BatchAborts,
        /// Renews only the first ten locks of a batch, and reports `Extended` for the rest.
        BatchTruncated,
        /// Answers a batch in reverse order.
        BatchOutOfOrder,
        /// Grants without a token.
        TokensMissing,
        /// Grants with a token that was not requested.
        TokensUnasked,
        /// Grants the same token again.
        TokenRepeats,
        /// Counts the tokens from one, and not from the clock, also after the counter was lost.
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
        /// Frees a lock at its release in spite of its minimum hold.
        KeptLockFreed,
        /// Keeps the former owner as the holder of a lock that is released with a minimum hold.
        KeptLockKeepsOwner,
        /// Reports `Gone` for a repeated release with a minimum hold.
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
        /// Grants a write lock while readers hold the lock.
        WriterIgnoresReaders,
        /// Grants a read lock while a writer holds the lock.
        ReaderIgnoresWriter,
        /// Stores fair locks and mutexes of a name separately, so that both are granted.
        KindsApart,
        /// Ends the holds of all readers when a writer releases or gives up.
        WriterEndsReaders,
        /// Extends the leases of all readers when one reader renews.
        ReaderRenewsAll,
        /// Keeps readers until they release.
        ReadersNeverExpire,
        /// Lets readers in while a writer waits.
        WaitingWriterIgnored,
        /// Keeps readers out after the writer has given up.
        WaitingWriterStays,
        /// Reports only one reader of a read-write lock.
        InspectHidesReaders,
        /// Ends the wait of the first writer when any waiting writer gives up.
        WriterEndsAnothersWait,
        /// Gives each reader a new token.
        ReaderGetsNewToken,
        /// Wakes no waiter when a share, the hold of a reader or of permits, is released.
        ShareWakesNoWaiter,
        /// Stores no tombstone for shares.
        ShareIgnoresTombstone,
        /// Grants more permits than there are.
        LimitIgnored,
        /// Keeps permits until they are released.
        PermitsNeverExpire,
        /// Takes more permits for a repeated attempt.
        PermitResendCounts,
        /// Sets the limit to the number by which it is to be changed.
        AddedLimitIsSet,
        /// Reports the release of a permit by its ID, and does not release it.
        PermitOfIdIsKept,
        /// Reports the extension of a permit by its ID, and does not extend it.
        PermitOfIdIsNotExtended,
        /// Takes one permit for a request for all free permits.
        DrainTakesOne,
        /// Applies the limit that each client names, and not the stored limit.
        LimitOfEachClient,
        /// Reports a forced release of shares, and keeps them.
        ForceKeepsShares,
        /// Ends the hold of a writer by a forced release of readers.
        ForceOfReadersEndsWriter,
        /// Confirms in `verify` that an owner has a share if any owner has one.
        VerifiesAnyShare,
        /// Grants a free fair lock to the next attempt, whatever the queue.
        QueueIgnored,
        /// Keeps the position of a waiter that is gone.
        DeadWaiterStays,
        /// Frees a fair lock or a write lock at its release in spite of its minimum hold.
        KeptLockOfKindFreed,
        /// Grants permits of a fair semaphore to any attempt for which enough are free, whatever
        /// the queue.
        PermitsOvertaken,
        /// Grants a fair read lock to a reader behind a waiting writer.
        ReaderOvertakesWriter,
        /// Grants both permits and locks of one name.
        SemaphoreBesideLock,
    }
    replicas {
        /// Reports that it has no replicas.
        ReplicasDenied,
        /// Reports enough confirmations without asking a replica.
        ConfirmsUnasked,
        /// Counts connected replicas as confirming.
        CountsConnectedReplicas,
        /// Requires under the policy "all" only the replicas that confirm at the moment.
        AllMeansConfirmingReplicas,
        /// Grants the lock whatever the replicas confirm.
        InsufficientReplicasUnreported,
        /// Reports that the lock is busy if too few replicas confirmed the grant.
        InsufficientReplicasIsBusy,
        /// Reports the release of a grant that too few replicas confirmed, and keeps the lock.
        UnconfirmedStays,
        /// Takes a repeated grant for confirmed, whatever the replicas confirm.
        ResendNotConfirmed,
        /// Requires no confirmations of renewals.
        RenewalUnconfirmed,
        /// Takes a renewal that wrote nothing for confirmed.
        UnchangedRenewalNotConfirmed,
        /// Requires for each lock of a batch the largest number of replicas that any lock of the
        /// batch requires.
        BatchSharesItsPolicy,
        /// Requires confirmations for a busy answer.
        BusyNeedsReplicas,
        /// Waits for replicas even if no policy requires confirmations.
        AlwaysAsksReplicas,
        /// Counts confirmations at once, without a wait.
        ReplicaTimeoutIgnored,
        /// Waits for replicas beyond the deadline of the call.
        ReplicasAwaitedBeyondDeadline,
    }
}
