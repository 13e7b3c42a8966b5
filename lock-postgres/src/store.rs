//! [`PostgresStore`]: the backend. Each request is one call of one function of the schema.

use crate::connection::{
    Connection, ConnectionPool, Dialer, Form, PAUSE, Parameter, PoolThread, Settings,
};
use crate::inspection::{self, Inspected};
use crate::names::Names;
use crate::numbers::{self, duration, micros, signed, unsigned};
use crate::watches::Watches;
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, NodeId,
    Release, ReleaseOptions, Renewal, RenewalRequest, RetryCause, TokenRange, Tokens, Tombstone,
    Wake, Watch,
};
use lock_core::{
    Backend, Clock, Config, Context, Error, FencingToken, LockKind, LockName, Moment, PermitId,
    TokenPolicy, WriterPriority,
};
use postgres::Row;
use postgres::types::Type;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The most renewals at once: the engine has up to four calls under way.
const RENEWING: u32 = 4;

/// How often a renewal is tried while another transaction has the row of the lock.
const TRIES: u32 = 5;

/// The longest wait of a renewal for the row of its lock, because other renewals wait for it, too.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Locks in the tables of a PostgreSQL database.
pub struct PostgresStore {
    pub(crate) pool: Arc<ConnectionPool>,
    /// Connections for renewals only, so that other requests cannot delay them.
    renewals: ConnectionPool,
    watches: Watches,
    pub(crate) names: Names,
    /// How long the row of an unused name is kept; `None`: for ever.
    retention: Option<Duration>,
    writers_first: bool,
}

/// A renewal that has no answer yet: its place in the batch, and the stored name of its lock.
struct Pending<'a> {
    at: usize,
    name: String,
    request: &'a RenewalRequest,
}

/// Returns the properties of a kind in the way in which the functions read them.
pub(crate) fn shape(kind: LockKind) -> String {
    let properties = [
        (kind.is_shared(), 's'),
        (kind.is_reader(), 'r'),
        (kind.is_writer(), 'w'),
        (kind.is_queued(), 'q'),
        (kind.permits().is_some(), 'p'),
    ];
    let has = properties.iter().filter(|(has, _)| *has);
    has.map(|(_, letter)| letter).collect()
}

fn unanswered() -> Failure {
    Failure::Unknown(Error::unavailable("the database has answered nothing"))
}

impl PostgresStore {
    pub(crate) fn new(
        settings: Settings,
        config: &Config,
        context: &Context,
    ) -> Result<Self, Error> {
        let thread = PoolThread::start()?;
        let dialer = Dialer::new(settings, config, context);
        let pool = ConnectionPool::new(config.pool(), &thread, Arc::clone(&dialer))?;
        let pool = Arc::new(pool);
        let renewals = ConnectionPool::new(RENEWING, &thread, dialer)?;
        let watches = Watches::new(Arc::clone(&pool), context.client);
        Ok(Self {
            pool,
            renewals,
            watches,
            names: Names::new(config),
            retention: match config.tokens() {
                TokenPolicy::Keep => None,
                _ => Some(config.token_retention()),
            },
            writers_first: config.writers() == WriterPriority::First,
        })
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.pool.dialer().clock()
    }

    pub(crate) fn settings(&self) -> &Settings {
        self.pool.dialer().settings()
    }

    /// Returns the longest wait for a row lock in a request that ends at `by`: so much less than is
    /// left that the answer arrives before.
    pub(crate) fn patience(&self, by: Moment) -> i64 {
        micros(by.since(self.clock().now()) * 3 / 4)
    }

    /// Sends a statement on a connection of the pool.
    pub(crate) fn query(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        by: Moment,
    ) -> Result<Vec<Row>, Failure> {
        self.pool
            .with(by, |connection| connection.query(statement, parameters, by))
    }

    pub(crate) fn inspected(
        &self,
        names: &[String],
        by: Moment,
    ) -> Result<Vec<Inspected>, Failure> {
        let statement = self.settings().call("inspect($1)");
        let rows = self.query(&statement, &[(&names, Type::TEXT_ARRAY)], by)?;
        Ok(inspection::of_rows(&rows, names.len()))
    }

    fn inspected_one(&self, name: &LockName, by: Moment) -> Result<Inspected, Failure> {
        let stored = self.names.stored(name)?;
        Ok(self.inspected(&[stored], by)?.pop().unwrap_or_default())
    }

    /// Renews some acquisitions once. `None`: another transaction has the row of the lock.
    fn renew_once(
        &self,
        connection: &mut Connection,
        batch: &[Pending<'_>],
        patience: Duration,
        by: Moment,
    ) -> Result<Vec<Option<Renewal>>, Failure> {
        let each = || batch.iter().map(|it| it.request);
        let names: Vec<_> = batch.iter().map(|it| it.name.as_str()).collect();
        let owners: Vec<_> = each().map(|it| it.acquisition.owner.to_string()).collect();
        let counts: Vec<_> = each()
            .map(|it| shares_of(it.acquisition.name.kind()))
            .collect();
        let lease = |it: &RenewalRequest| micros(it.acquisition.lease.duration());
        let leases: Vec<_> = each().map(lease).collect();
        let labels = each().map(|it| it.label.as_ref().map(|label| label.text.as_ref()));
        let labels: Vec<_> = labels.collect();
        let since = each().map(|it| {
            let since = it.label.as_ref()?.since.duration_since(UNIX_EPOCH);
            since.ok().map(micros)
        });
        let since: Vec<_> = since.collect();
        let parameters: &[Parameter<'_>] = &[
            (&names, Type::TEXT_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&counts, Type::INT4_ARRAY),
            (&leases, Type::INT8_ARRAY),
            (&labels, Type::TEXT_ARRAY),
            (&since, Type::INT8_ARRAY),
            (&micros(patience), Type::INT8),
        ];
        let statement = self.settings().call("renew($1, $2, $3, $4, $5, $6, $7)");
        let rows = connection.query(&statement, parameters, by)?;
        let outcomes: Vec<String> = rows.first().ok_or_else(unanswered)?.get(0);
        let meaning = |outcome: &String| match outcome.as_str() {
            "extended" => Some(Renewal::Extended),
            "gone" => Some(Renewal::Gone),
            _ => None,
        };
        Ok(outcomes.iter().map(meaning).collect())
    }
}

/// Returns how many permits an acquisition of this kind has; 1 for a reader, `None` for other
/// kinds.
fn shares_of(kind: LockKind) -> Option<i32> {
    match kind.permits() {
        Some((_, count)) => Some(signed(count)),
        None => kind.is_shared().then_some(1),
    }
}

impl Backend for PostgresStore {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let Attempt {
            name,
            owner,
            lease,
            tokens,
            beside,
            waits,
            presence,
            label,
            ..
        } = *attempt;
        let stored = self.names.stored(name)?;
        let kind = name.kind();
        let (limit, count) = kind.permits().unzip();
        let identity = PermitId::new(owner, 0);
        let identity = match kind.permits() {
            Some(_) => &identity.as_bytes()[..PermitId::COMMON_BYTES],
            None => &[],
        };
        let reserve = match tokens {
            Tokens::Assign { reserve } => Some(signed(reserve)),
            _ => None,
        };
        let parameters: &[Parameter<'_>] = &[
            (&stored, Type::TEXT),
            (&owner.to_string(), Type::TEXT),
            (&shape(kind), Type::TEXT),
            (&micros(lease.duration()), Type::INT8),
            (&waits, Type::BOOL),
            (&micros(presence), Type::INT8),
            (&beside.map(|it| it.to_string()), Type::TEXT),
            (&limit.map(signed), Type::INT4),
            (&count.map(signed), Type::INT4),
            (&identity, Type::BYTEA),
            (&reserve, Type::INT4),
            (&label.map(|it| it.as_ref()), Type::TEXT),
            (&self.writers_first, Type::BOOL),
            (&self.retention.map(micros), Type::INT8),
            (&self.patience(by), Type::INT8),
        ];
        let statement = self
            .settings()
            .call("acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)");
        // A connection must be there first: it may be the one that detects another server.
        let rows = self.pool.with(by, |connection| {
            if let Some(left) = self.pool.dialer().pause() {
                return Ok(Err(left));
            }
            connection.query(&statement, parameters, by).map(Ok)
        })?;
        let rows = match rows {
            Ok(rows) => rows,
            Err(left) => return Ok(paused(left)),
        };
        let row = rows.first().ok_or_else(unanswered)?;
        if row.get::<_, &str>(0) != "granted" {
            let left: Option<i64> = row.get(1);
            return Ok(Answer::Busy(left.map(duration)));
        }
        let token = |at| row.get::<_, Option<i64>>(at).and_then(numbers::token);
        let range = token(2).zip(token(3));
        let range = range.and_then(|(first, last)| TokenRange::new(first, last));
        let mut grant = Grant::new(range);
        let permits: (Option<i32>, Option<i32>) = (row.get(4), row.get(5));
        if let (Some(limit), Some(count)) = permits {
            grant = grant.limit(unsigned(limit)).count(unsigned(count));
        }
        Ok(Answer::Granted(grant))
    }

    fn renew(
        &self,
        _node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let mut outcomes: Vec<Option<Result<Renewal, Failure>>> = vec![None; batch.len()];
        let mut pending = Vec::new();
        for (at, request) in batch.iter().enumerate() {
            match self.names.stored(&request.acquisition.name) {
                Ok(name) => pending.push(Pending { at, name, request }),
                Err(failure) => outcomes[at] = Some(Err(failure)),
            }
        }
        // A row that stays locked must not hold the answers about the others up.
        let mut tried = 0;
        while !pending.is_empty() {
            tried += 1;
            // Attempts queue for a row, and a renewal that did not would never get a row that is
            // always wanted.
            let patience = match tried {
                1 | 2 => Duration::ZERO,
                _ => LONGEST_WAIT.min(by.since(self.clock().now()) / 4),
            };
            let renewed = self
                .renewals
                .with(by, |it| self.renew_once(it, &pending, patience, by));
            let is_late = tried == TRIES || self.clock().now() + PAUSE >= by;
            for (n, renewal) in pending.iter().enumerate() {
                outcomes[renewal.at] = match &renewed {
                    Err(failure) => Some(Err(failure.clone())),
                    Ok(renewed) => match renewed.get(n) {
                        Some(Some(renewal)) => Some(Ok(*renewal)),
                        Some(None) if !is_late => None,
                        Some(None) => Some(Err(Failure::Refused(Error::unavailable(
                            "another transaction holds the row of the lock",
                        )))),
                        None => Some(Err(unanswered())),
                    },
                };
            }
            pending.retain(|it| outcomes[it.at].is_none());
            if !pending.is_empty() {
                self.pool.dialer().pause_for(PAUSE);
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        let last_used = options.last_used.map(FencingToken::get);
        let last_used = last_used.and_then(|it| i64::try_from(it).ok());
        let closes = options.tombstone == Tombstone::Leave;
        let tombstone = closes.then(|| micros(lease.duration()));
        let kept = options.kept;
        let kind = name.kind();
        let stored = self.names.stored(name)?;
        let parameters: &[Parameter<'_>] = &[
            (&stored, Type::TEXT),
            (&owner.to_string(), Type::TEXT),
            (&shape(kind), Type::TEXT),
            (&shares_of(kind), Type::INT4),
            (&last_used, Type::INT8),
            (&tombstone, Type::INT8),
            (&kept.map(|it| it.owner.to_string()), Type::TEXT),
            (&kept.map(|it| micros(it.time.duration())), Type::INT8),
            (&self.patience(by), Type::INT8),
        ];
        let statement = self
            .settings()
            .call("release($1, $2, $3, $4, $5, $6, $7, $8, $9)");
        let rows = self.query(&statement, parameters, by)?;
        match rows.first().ok_or_else(unanswered)?.get(0) {
            true => Ok(Release::Freed),
            false => Ok(Release::Gone),
        }
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.inspected_one(name, by)?.info(name)
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let AcquisitionId { name, owner, .. } = acquisition;
        let inspected = self.inspected_one(name, by)?;
        match name.kind().is_shared() {
            true => {
                let count = name.kind().permits().map_or(1, |(_, count)| count);
                inspected.share_of(name, *owner, count)
            }
            false => Ok(inspected.info(name)?.held_by(*owner)),
        }
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let stored = self.names.stored(name)?;
        self.watches.add(stored, wake, self.patience(by), by)
    }

    fn abilities(&self) -> Abilities {
        Abilities::full()
            .all_kinds(self.settings().form != Form::ShedLock)
            .waits_for_releases(true)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

pub(crate) fn paused(left: Duration) -> Answer {
    let why = "the server was replaced, and nothing is granted until the leases of before are over \
               (`restart_grace`)";
    let why = Error::unavailable(why);
    Answer::Retry {
        cause: RetryCause::Paused {
            why,
            may_end_sooner: false,
        },
        after: Some(left),
        new_owner: false,
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres {}", self.settings().hosts())
    }
}
