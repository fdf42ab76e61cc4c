/*
 * The protocol of pgleases, for Spin: processes that own partitions of one lease, the database that they share, time, and
 * faults. doc.go says what is modeled, what is left out, and why that is sound.
 *
 * Every statement of sql/ is an inline here with the name of its file. It is one step, because it is a single autocommitted
 * statement that takes its row locks before it decides. The client's use of an answer is a separate step, answer_*, so that
 * anything may happen between the two, and the answer may be lost.
 *
 * -D sets the size, the faults, and the mutants. A mutant's name is the rule of the protocol that it breaks.
 */

#ifndef N
#define N 2                 /* processes */
#endif
#ifndef P
#define P 1                 /* partitions */
#endif
#ifndef MAXEPOCH
#define MAXEPOCH 4          /* changes of owner of one partition, within a server generation */
#endif
#ifndef CRASHES
#define CRASHES 0           /* processes that are killed */
#endif
#ifndef CLOSES
#define CLOSES 0            /* processes that are closed */
#endif
#ifndef RESTARTS
#define RESTARTS 0          /* crashes of the database, which lose asynchronous commits */
#endif
#ifndef PROMOTIONS
#define PROMOTIONS 0        /* promotions of a standby that missed the last commits; at most 1 */
#endif
#ifndef REREGISTERS
#define REREGISTERS 1       /* sessions that a process begins after an eviction; at most 1 */
#endif
#ifndef LOSSES
#define LOSSES 1            /* lost answers in the model of completeness; in the model of safety any answer may be lost */
#endif

#ifndef DELAY
#define DELAY 0             /* ticks for which partitions with a live owner stay after a join; in the model of completeness */
#endif
#ifndef GRACE
#define GRACE 0             /* ticks for which the partitions of an evicted client wait for it; in the model of completeness */
#endif

#ifndef OPERATIONS
#define OPERATIONS N        /* pending answers at a time */
#endif

#ifndef TTL
#define TTL 3               /* ticks until a session expires, by the database's clock */
#endif
#ifndef TRUST
#define TRUST (TTL - 1)     /* ticks that a client trusts itself, from before it sent the heartbeat: the margin is one tick */
#endif
#define SGEN   16           /* the first epoch of a server generation is a multiple of it */
#define NO_SESSION 0        /* process c has the sessions 2c+1 and 2c+2, in turn */
#define QUIET  (3 * TTL + DELAY + GRACE)    /* ticks after the last fault within which every partition has an owner again */

/* In the model of safety a client may do at any time everything that it can ever do. In the model of completeness it does what
 * it has a reason to do, and time passes when no client has a reason to act. */
#ifdef COMPLETENESS
#define REASON(r) (r)
#define mayLose   (!calm && losses > 0)
#else
#define REASON(r) true
#define mayLose   true
#endif
#if defined(COMPLETENESS) || defined(APART)
#define GENERATION true     /* a read depends on the generation; else a client may read at any time */
#else
#define GENERATION false
#endif
#ifdef ANNOUNCE_FORGOTTEN
#define ANNOUNCES false
#else
#define ANNOUNCES GENERATION    /* a release must be announced */
#endif

/* ---- the database ---- */

typedef Partition {
	byte owner, target, epoch;
	byte wrote              /* epoch under which the last guarded transaction committed: users' data in the same database */
}
typedef Tables {
	Partition part[P];
	bit alive[2*N + 1];     /* by session: it has a row in clients, and is a member */
	byte incarnation        /* the highest of the ID that processes 0 and 1 share */
}
Tables db;
Tables standby;             /* an earlier state of the tables, which a standby has when it is promoted */
bit replicated;             /* standby is set */
byte expires[2*N + 1];      /* by session: ticks until it expires */
byte runs;                  /* ticks since the server's run began, at most TTL */
byte sgen;
bit timeline, accepted;      /* the server's timeline, and the accepted one */

/* ---- the processes ---- */

mtype:ownership = { NOT_OWNED, SHOWN, DRAINING, ENDED };  /* ENDED: drains, but its trust ended meanwhile */
mtype:operation = { NONE, REGISTERED, BEAT, READ, RELEASED, PLANNED };
mtype:work      = { IDLE, WORKING, GUARDED };
mtype:outcome   = { NOTHING, BUSY, HANDED, BACK };

typedef Process {
	bit up, known;              /* up: it runs; known: it knows its session as registered */
	bit turn;                   /* which of its two sessions is the present one */
	bit ending;                 /* closed, or superseded by a newer process of the same ID */
	byte incarnation;
	byte trust;                 /* ticks left until the trust deadline; 0: none */
	bit timeline;               /* on which all that is shown was confirmed */
	bit seen;                   /* the server's timeline in the last heartbeat */
	bit accepted;                /* from the last heartbeat */
	byte anchor;                /* 1 + ticks since the last heartbeat was sent, while a read must confirm before it counts */
	bit dirty;                  /* the lease's generation is not the one last read */
	bit unannounced;            /* it released a partition, and has not announced that yet */
	mtype:ownership has[P];
	byte epoch[P];
#ifdef GUARDS
	bit fencing[P];             /* a fence was sent: the epoch may be higher than is known */
#endif

	/* the pending operation, and its answer; all zero if there is none */
	mtype:operation op;
	byte age;                   /* ticks since it was sent */
	bit ansAlive, ansTimeline, ansAccepted, ansNewer;
	byte opPartition, opSession;    /* opPartition: 1 + its number */
	bit opFree;
	mtype:outcome ansOutcome;
	byte ansEpoch[P];           /* 0: not owned */
	bit ansMoving[P];

	/* the application: one piece of work, which remembers the ownership that it began under */
	mtype:work work;
	byte workPartition, workEpoch;
	bit pinned                  /* as under Run or Hold: a handoff waits for it; otherwise it is a zombie that may */
}                               /* continue at any time, because no handoff waits for it */
Process pr[N];

/* A release that its client gave up, and that the database runs late or never. */
byte lateSession, latePartition, lateEpoch;

#if DELAY > 0
byte settles;                   /* ticks until the rebalance delay ends */
#define settling (settles > 0)
#else
#define settling false
#endif
#if GRACE > 0
byte waits[P];                  /* ticks until the partition waits no more for its last owner */
#define waiting(p) (waits[p] > 0)
#else
#define waiting(p) false
#endif

byte highest[P];                /* the highest epoch that any server ever gave out */
byte crashes, closes, restarts, promotions, losses, quiet;
bit calm;                       /* faults are over */
bit bounds;                     /* a process ended because the model is bounded, not because of the protocol */
hidden byte i, j, k;            /* only within a d_step */

#define session(c)      (2*c + pr[c].turn + 1)
#define process(s)      ((s - 1) / 2)
#define living(s)       (s != NO_SESSION && db.alive[s])
#define isAccepted       (timeline == accepted)
#if N > 2
#define underWay        ((pr[0].op != NONE) + (pr[1].op != NONE) + (pr[2].op != NONE))
#else
#define underWay        ((pr[0].op != NONE) + (pr[1].op != NONE))
#endif
#define ready(c)        (pr[c].up && pr[c].op == NONE && underWay < OPERATIONS)

/* A client uses a partition: it shows the partition, or its work on the partition has not ended. */
#define works(c, p)     (pr[c].work != IDLE && pr[c].pinned && pr[c].workPartition == p && pr[c].workEpoch == pr[c].epoch[p])
#define uses(c, p)      (pr[c].trust > 0 && (pr[c].has[p] == SHOWN || pr[c].has[p] == DRAINING && works(c, p)))

#ifdef GUARD_WITHOUT_LOCK
#define locks(c, p)     false
#else
#define locks(c, p)     (pr[c].work == GUARDED && pr[c].workPartition == p)
#endif
#if N > 2
#define locked(p)       (locks(0, p) || locks(1, p) || locks(2, p))
#define othersUse(c, p) (c != 0 && uses(0, p) || c != 1 && uses(1, p) || c != 2 && uses(2, p))
#else
#define locked(p)       (locks(0, p) || locks(1, p))
#define othersUse(c, p) (c != 0 && uses(0, p) || c != 1 && uses(1, p))
#endif
#ifdef TAKEOVER_WITHOUT_FOR_UPDATE
#define takeable(p)     true       /* a plain UPDATE does not conflict with FOR KEY SHARE */
#else
#define takeable(p)     (!locked(p))
#endif

#ifdef EPOCH_WITHOUT_GENERATION
#define nextEpoch(p)    (db.part[p].epoch + 1)
#else
#define nextEpoch(p)    (db.part[p].epoch < sgen * SGEN -> sgen * SGEN : db.part[p].epoch + 1)
#endif
#define outdated(p)     (db.part[p].epoch < sgen * SGEN)
/* Bounds the model, not the protocol. After the faults the bound is a little higher, and partitions must come to rest within it. */
#define bounded(p)      (nextEpoch(p) % SGEN <= (calm -> MAXEPOCH + 8 : MAXEPOCH))

/* ---- shared parts of steps ---- */

inline raise_generation() {
	for (i : 0 .. N-1) { pr[i].dirty = GENERATION && pr[i].up && pr[i].known }
	skip                            /* a d_step must not end with a loop */
}

/* change_owner: every change of owner, under the next epoch. */
inline change_owner(p, s) {
	db.part[p].epoch = nextEpoch(p);
	assert(db.part[p].epoch > highest[p]);           /* PROMISE: an epoch neither repeats nor falls */
	highest[p] = db.part[p].epoch;
#if GRACE > 0
	waits[p] = 0;
#endif
	db.part[p].owner = s;
	db.part[p].target = s
}

#ifdef ENDED_BEFORE
#define before(c, p, e) (pr[c].work == GUARDED && pr[c].workPartition == p && pr[c].workEpoch < e)
#if N > 2
#define guardedBefore(p, e) (before(0, p, e) || before(1, p, e) || before(2, p, e))
#else
#define guardedBefore(p, e) (before(0, p, e) || before(1, p, e))
#endif
#endif
inline serve(c, p, e) {
	pr[c].has[p] = SHOWN;
	pr[c].epoch[p] = e;
#ifdef ENDED_BEFORE
	assert(!guardedBefore(p, e));                    /* PROMISE: guarded transactions of earlier epochs have ended */
#endif
	assert(!uses(c, p) || !othersUse(c, p))          /* PROMISE: exclusive */
}

inline forget(c, p) {
#ifdef GUARDS
	pr[c].fencing[p] = 0;
#endif
	pr[c].has[p] = NOT_OWNED;
	pr[c].epoch[p] = 0
}

inline forget_all(c) {
	for (j : 0 .. P-1) { forget(c, j) }
	skip
}

inline withdraw_all(c) {
	for (j : 0 .. P-1) {
		if
		:: pr[c].has[j] == SHOWN -> pr[c].has[j] = DRAINING
		:: else
		fi
	}
	skip
}

/* lose_trust: every ownership ends at once; a partition with work is released when the work has ended. */
inline lose_trust(c) {
	pr[c].trust = 0;
	pr[c].anchor = 0;
	for (j : 0 .. P-1) {
		if
		:: pr[c].has[j] != NOT_OWNED -> pr[c].has[j] = ENDED
		:: else
		fi
	}
	skip
}

/* give_trust: the trust from a heartbeat that was sent a number of ticks ago. */
inline give_trust(c, since) {
	if
	:: since < TRUST && TRUST - since > pr[c].trust ->
		if
		:: pr[c].trust == 0 -> pr[c].dirty = GENERATION
		:: else
		fi;
		pr[c].trust = TRUST - since
	:: else
	fi
}

inline no_operation(c) {
	pr[c].op = NONE;
	pr[c].age = 0;
	pr[c].ansAlive = 0;
	pr[c].ansTimeline = 0;
	pr[c].ansAccepted = 0;
	pr[c].ansNewer = 0;
	pr[c].opPartition = 0;
	pr[c].opSession = 0;
	pr[c].opFree = 0;
	pr[c].ansOutcome = NOTHING;
	for (j : 0 .. P-1) {
		pr[c].ansEpoch[j] = 0;
		pr[c].ansMoving[j] = 0
	}
	skip
}

inline no_work(c) {
	pr[c].work = IDLE;
	pr[c].workPartition = 0;
	pr[c].workEpoch = 0;
	pr[c].pinned = 0
}

inline gone(c) {                /* the process has ended; its session remains */
	forget_all(c);
	no_operation(c);
	no_work(c);
	pr[c].up = 0;
	pr[c].known = 0;
	pr[c].trust = 0;
	pr[c].timeline = 0;
	pr[c].seen = 0;
	pr[c].accepted = 0;
	pr[c].anchor = 0;
	pr[c].dirty = 0;
	pr[c].unannounced = 0;
	pr[c].ending = 0
}

/* ---- the statements ---- */

/* register.sql and join.sql: a session begins. If it is repeated after a lost answer, it changes nothing. */
inline register(c) {
	atomic {
		ready(c) && !pr[c].known && !pr[c].ending ->
		d_step {
#ifdef SAME_ID
			if
			:: c < 2 && pr[c].incarnation == 0 ->
				db.incarnation++;
				pr[c].incarnation = db.incarnation
			:: c < 2 && db.incarnation < pr[c].incarnation -> db.incarnation = pr[c].incarnation
			:: else
			fi;
			pr[c].ansNewer = (c < 2 && db.incarnation > pr[c].incarnation);
#endif
			pr[c].op = REGISTERED;
			if
			:: !pr[c].ansNewer ->
				if
				:: !db.alive[session(c)] -> raise_generation()
				:: else
				fi;
				db.alive[session(c)] = 1;
#if DELAY > 0
				settles = DELAY;
#endif
				expires[session(c)] = TTL
			:: else
			fi
		}
	}
}

inline answer_register(c) {
	atomic {
		pr[c].op == REGISTERED ->
		d_step {
			if
			:: pr[c].ansNewer -> gone(c)                /* superseded before it began */
			:: else ->
				pr[c].known = 1;
#ifdef TRUST_AT_ANSWER
				give_trust(c, 0);
#else
				give_trust(c, pr[c].age);
#endif
				no_operation(c)
			fi
		}
	}
}

/* heartbeat.sql. Sending is not a separate step: a delay on the way to the database only makes expires later, and the client's
 * trust is counted from before it. */
inline heartbeat(c) {
	atomic {
		ready(c) && pr[c].known && REASON(pr[c].trust < TRUST || pr[c].seen != timeline || pr[c].accepted != isAccepted) ->
		d_step {
			if
			:: db.alive[session(c)] ->
				pr[c].ansAlive = 1;
				expires[session(c)] = TTL
			:: else
			fi;
			pr[c].op = BEAT;
			pr[c].ansTimeline = timeline;
			pr[c].ansAccepted = isAccepted;
#ifdef SAME_ID
			pr[c].ansNewer = (c < 2 && db.incarnation > pr[c].incarnation)
#endif
		}
	}
}

/* Whether a heartbeat alone prolongs trust. */
#if P > 1
#define shows(c) (pr[c].has[0] == SHOWN || pr[c].has[1] == SHOWN)
#define holds(c) (pr[c].has[0] == SHOWN || pr[c].has[0] == DRAINING || pr[c].has[1] == SHOWN || pr[c].has[1] == DRAINING)
#else
#define shows(c) (pr[c].has[0] == SHOWN)
#define holds(c) (pr[c].has[0] == SHOWN || pr[c].has[0] == DRAINING)
#endif
#if defined(TRUST_BEFORE_REREAD)
#define CONFIRMED(c) true
#elif defined(DRAINING_NOT_CONFIRMED)
#define CONFIRMED(c) (pr[c].timeline == pr[c].ansTimeline || !shows(c))
#else
#define CONFIRMED(c) (pr[c].timeline == pr[c].ansTimeline || !holds(c))
#endif

inline answer_heartbeat(c) {
	atomic {
		pr[c].op == BEAT ->
		d_step {
			pr[c].seen = pr[c].ansTimeline;
			if
			:: !pr[c].ansAlive ->                       /* evicted: a new session begins, and joins again */
				lose_trust(c);
				forget_all(c);
				pr[c].known = 0;
				pr[c].dirty = 0;
				if
				:: pr[c].turn < REREGISTERS -> pr[c].turn = 1
				:: else -> bounds = 1; gone(c)          /* bounds the model, as if it was killed */
				fi
			:: else ->
				if
				:: pr[c].accepted != pr[c].ansAccepted ->
					pr[c].accepted = pr[c].ansAccepted;
					pr[c].dirty = GENERATION
				:: else
				fi;
				/* A promoted server may have missed handoffs: trust is not prolonged before everything is read again. */
				if
				:: CONFIRMED(c) ->
					pr[c].timeline = pr[c].ansTimeline;
					pr[c].anchor = 0;
#ifdef TRUST_AT_ANSWER
					give_trust(c, 0)
#else
					give_trust(c, pr[c].age)
#endif
				:: else ->
					pr[c].anchor = pr[c].age + 1;
					pr[c].dirty = GENERATION
				fi;
				if
				:: pr[c].ansNewer ->
					pr[c].ending = 1;
					withdraw_all(c)
				:: else
				fi
			fi;
			no_operation(c)
		}
	}
}

/* read.sql: the session's ownerships. */
inline read(c) {
	atomic {
		ready(c) && pr[c].known && pr[c].trust > 0 && REASON(pr[c].dirty) ->
		d_step {
			for (i : 0 .. P-1) {
				if
				:: db.part[i].owner == session(c) ->
					pr[c].ansEpoch[i] = db.part[i].epoch;
					pr[c].ansMoving[i] = (db.part[i].target != db.part[i].owner || outdated(i)) /* in both cases it drains */
				:: else
				fi
			}
			pr[c].op = READ;
			pr[c].dirty = 0;                            /* what changes from here on is read again */
			pr[c].ansTimeline = timeline;
			pr[c].ansAccepted = isAccepted
		}
	}
}

#ifdef GAIN_UNACCEPTED
#define GAINS(c) true
#else
#define GAINS(c) pr[c].accepted
#endif
inline answer_read(c) {
	atomic {
		pr[c].op == READ ->
		d_step {
			if
			:: pr[c].trust == 0 -> pr[c].dirty = GENERATION
			:: pr[c].trust > 0 && (pr[c].ansTimeline != pr[c].seen || pr[c].ansAccepted != pr[c].accepted) -> pr[c].dirty = GENERATION
			:: else ->
				for (i : 0 .. P-1) {
#ifdef GUARDS
					if
					:: pr[c].fencing[i] && pr[c].ansEpoch[i] > pr[c].epoch[i] ->
						pr[c].epoch[i] = pr[c].ansEpoch[i];
						pr[c].fencing[i] = 0
					:: else
					fi;
#endif
					if                                  /* released meanwhile, or a failover raised the epoch */
					:: pr[c].has[i] != NOT_OWNED && pr[c].epoch[i] != pr[c].ansEpoch[i] -> forget(c, i)
					:: else
					fi;
					if
					:: pr[c].ansEpoch[i] == 0
					:: pr[c].ansEpoch[i] != 0 && pr[c].has[i] == SHOWN ->
						if
						:: pr[c].ansMoving[i] -> pr[c].has[i] = DRAINING
						:: else
						fi
					:: pr[c].ansEpoch[i] != 0 && (pr[c].has[i] == DRAINING || pr[c].has[i] == ENDED) ->
#ifdef SHOWN_AGAIN
						if
						:: !pr[c].ansMoving[i] && !pr[c].ending -> serve(c, i, pr[c].ansEpoch[i])
						:: else
						fi
#else
						skip                            /* its release may be on its way: never again under this epoch */
#endif
					:: else ->
						if
#ifndef GAIN_UNACCEPTED
						:: !pr[c].accepted
#endif
						:: GAINS(c) && (pr[c].ansMoving[i] || pr[c].ending) ->
							pr[c].has[i] = DRAINING;
							pr[c].epoch[i] = pr[c].ansEpoch[i]
						:: else -> serve(c, i, pr[c].ansEpoch[i])
						fi
					fi
				}
				if
				:: pr[c].timeline != pr[c].ansTimeline ->
					pr[c].timeline = pr[c].ansTimeline;
					give_trust(c, pr[c].anchor - 1);
					pr[c].anchor = 0
				:: else
				fi
			fi;
			no_operation(c)
		}
	}
}
/* release.sql: the owner gives a partition directly to its target, under the next epoch. It names the epoch that it gives up.
 * If the target has ended, the partition is free; if the target is the owner itself, a new ownership begins. A partition of an
 * earlier server generation keeps its owner and its target. The generation rises if a plan is due; announce notifies a new
 * owner. A session that has ended releases nothing. */
#ifdef RELEASE_WITHOUT_EPOCH
#define released(p, s, e)  (isAccepted && living(s) && db.part[p].owner == s && takeable(p))
#else
#define released(p, s, e)  (isAccepted && living(s) && db.part[p].owner == s && db.part[p].epoch == e && takeable(p))
#endif
#define successor(p, s, leaving) (living(db.part[p].target) && !(leaving && db.part[p].target == s) -> db.part[p].target : NO_SESSION)
inline hand(p, s, leaving) {
	k = (outdated(p) && !leaving -> db.part[p].target : NO_SESSION);
	j = (outdated(p) && !leaving -> (living(s) -> s : NO_SESSION) : successor(p, s, leaving));
	change_owner(p, j);
	if
	:: k != NO_SESSION -> db.part[p].target = k
	:: else
	fi;
	if
	:: j == NO_SESSION -> raise_generation()
	:: else
	fi
}
#ifdef RELEASE_BEFORE_END
#define releasable(c, p)   (pr[c].has[p] == DRAINING || pr[c].has[p] == ENDED)
#else
#define releasable(c, p)   ((pr[c].has[p] == DRAINING || pr[c].has[p] == ENDED) && !works(c, p))
#endif

inline release(c, p) {
	atomic {
		ready(c) && pr[c].known && pr[c].accepted && releasable(c, p) && bounded(p) && REASON(takeable(p)) ->
		d_step {
			pr[c].op = RELEASED;
			pr[c].opPartition = p + 1;
			if
			:: released(p, session(c), pr[c].epoch[p]) ->
				hand(p, session(c), pr[c].ending);
				pr[c].ansOutcome = (j == session(c) -> BACK : HANDED);
				pr[c].ansEpoch[p] = db.part[p].epoch
			:: else ->
				pr[c].ansOutcome = (db.part[p].owner == session(c) && db.part[p].epoch == pr[c].epoch[p] -> BUSY : NOTHING)
			fi;
			if
			:: pr[c].ansOutcome != BACK -> pr[c].ansEpoch[p] = 0
			:: else
			fi
		}
	}
}

inline answer_release(c) {
	atomic {
		pr[c].op == RELEASED ->
		d_step {
			i = pr[c].opPartition - 1;
			if
			:: pr[c].ansOutcome == BUSY                  /* a guarded transaction is open: retry later */
#ifdef GUARDS
			:: pr[c].ansOutcome == NOTHING && pr[c].fencing[i] -> pr[c].dirty = GENERATION
			:: pr[c].ansOutcome == NOTHING && !pr[c].fencing[i] || pr[c].ansOutcome == BACK && (pr[c].trust == 0 || pr[c].ending) ->
#else
			:: pr[c].ansOutcome == NOTHING || pr[c].ansOutcome == BACK && (pr[c].trust == 0 || pr[c].ending) ->
#endif
				forget(c, i);                           /* an earlier release did it: a read returns the owner */
				pr[c].unannounced = ANNOUNCES;
				pr[c].dirty = GENERATION
			:: pr[c].ansOutcome == BACK && pr[c].trust > 0 && !pr[c].ending -> serve(c, i, pr[c].ansEpoch[i])
			:: else ->
				forget(c, i);
				pr[c].unannounced = ANNOUNCES
			fi;
			no_operation(c)
		}
	}
}

/* announce.sql, after a release. It is sent until it is answered, so it makes no difference whether the message or the answer
 * is lost. */
inline announce(c) {
	atomic {
		ready(c) && pr[c].unannounced ->
		d_step {
			raise_generation();
			pr[c].unannounced = 0
		}
	}
}

#ifdef GUARDS
/* A release waits for a guarded transaction, so a fence is sent. */
inline fence(c, p) {
	atomic {
		ready(c) && pr[c].known && pr[c].accepted && releasable(c, p) && !takeable(p) && !pr[c].fencing[p] ->
		d_step { pr[c].fencing[p] = 1 }
	}
}

/* fence.sql: no further guard passes; transactions that have passed continue. The database runs it at any time after it was
 * sent, or never. A read returns the new epoch, so the answer is not a separate step. */
inline run_fence(c, p) {
	atomic {
		pr[c].fencing[p] && isAccepted && db.part[p].owner == session(c) && db.part[p].epoch == pr[c].epoch[p] && bounded(p) ->
		d_step {
			db.part[p].epoch = nextEpoch(p);
			assert(db.part[p].epoch > highest[p]);
			highest[p] = db.part[p].epoch;
			pr[c].dirty = GENERATION;
#ifdef FENCE_FORGOTTEN
			pr[c].fencing[p] = 0
#endif
		}
	}
}
#endif

/* The client gives up a release, which then runs late or never. */
inline release_late(c, p) {
	atomic {
		ready(c) && pr[c].known && pr[c].accepted && releasable(c, p) && lateSession == NO_SESSION && mayLose ->
		d_step {
			lateSession = session(c);
			latePartition = p;
			lateEpoch = pr[c].epoch[p];
#ifdef COMPLETENESS
			losses--;
#endif
#ifdef RELEASE_NOT_RETRIED
			forget(c, p)
#endif
		}
	}
}

inline run_late_release() {
	atomic {
		lateSession != NO_SESSION && bounded(latePartition) ->
		d_step {
			if
			:: released(latePartition, lateSession, lateEpoch) -> hand(latePartition, lateSession, 0)
			:: else
			fi;
			lateSession = NO_SESSION;
			latePartition = 0;
			lateEpoch = 0
		}
	}
}

inline drop_late_release() {
	atomic {
		lateSession != NO_SESSION ->
		d_step {
			lateSession = NO_SESSION;
			latePartition = 0;
			lateEpoch = 0
		}
	}
}

/* close.sql: a session that owns nothing ends. */
#if P > 1
#define ownsNothing(s) (db.part[0].owner != s && db.part[1].owner != s)
#define hasNothing(c)  (pr[c].has[0] == NOT_OWNED && pr[c].has[1] == NOT_OWNED)
#else
#define ownsNothing(s) (db.part[0].owner != s)
#define hasNothing(c)  (pr[c].has[0] == NOT_OWNED)
#endif
inline close(c) {
	atomic {
		ready(c) && pr[c].ending && hasNothing(c) && (!pr[c].known || ownsNothing(session(c))) ->
		d_step {
			db.alive[session(c)] = 0;
			expires[session(c)] = 0;
			raise_generation();
			gone(c)
		}
	}
}

/* evict.sql: a session is evicted if it has expired by the clock that the evicting client has watched, for a TTL, on this run
 * of the server. No watch is longer than the run, so the run's age stands for the longest watch that any client can have. */
#if defined(EVICT_WITHOUT_WATCH)
#define watched true
#elif defined(EVICT_SHORT_WATCH)
#define watched (runs >= 1)
#else
#define watched (runs >= TTL)
#endif
inline evict(s) {
	atomic {
		db.alive[s] && expires[s] == 0 && isAccepted && watched ->
		d_step {
			/* PROMISE: no client is evicted while it trusts itself */
			assert(!(pr[process(s)].up && session(process(s)) == s && pr[process(s)].trust > 0));
			db.alive[s] = 0;
#if GRACE > 0
			for (i : 0 .. P-1) {
				if
				:: db.part[i].owner == s -> waits[i] = GRACE
				:: else
				fi
			}
#endif
			raise_generation()
		}
	}
}

/* snapshot.sql and apply.sql: a partition gets a target. A partition without a live owner goes to its target at once, under
 * the next epoch. The plan is arbitrary, because it decides only which client should get a partition. Both are one step here,
 * because apply writes nothing unless the generation, and so everything that it relies on, is as it was read. */
#ifdef COMPLETENESS
/* The planner, a pure function here too: partition p goes to process p, or to the next live one. */
#define live(c)      (pr[c].ending -> NO_SESSION : (db.alive[2*(c)+1] -> 2*(c)+1 : (db.alive[2*(c)+2] -> 2*(c)+2 : NO_SESSION)))
#define preferred(p) (live(p) != NO_SESSION -> live(p) : live(1 - p))
/* What waits goes back to its last owner only, also under a new session. */
#define choice(p, s) (waiting(p) -> process(s) == process(db.part[p].owner) : s == preferred(p))
#define shown(p)     (pr[0].trust > 0 && pr[0].has[p] == SHOWN || \
                      pr[1].trust > 0 && pr[1].has[p] == SHOWN)
#endif
#define kept(p)      (living(db.part[p].owner))
#ifdef ORPHANS_OF_UNMOVED_TARGETS
#define moves(p, s)  (db.part[p].target != s)
#else
#define moves(p, s)  (kept(p) && db.part[p].target != s || !kept(p))
#endif
#ifdef COMPLETENESS
#define wanted(p, s) (moves(p, s) && (kept(p) && !settling || !kept(p) && takeable(p) && bounded(p)) && choice(p, s))
#else
#define wanted(p, s) (moves(p, s) && (kept(p) || takeable(p) && bounded(p)))
#endif
inline plan(p, s) {
	atomic {
		db.alive[s] && isAccepted && wanted(p, s) ->
		d_step {
			if
			:: living(db.part[p].owner) ->
				db.part[p].target = s
			:: else -> change_owner(p, s)
			fi;
			raise_generation()
		}
	}
}

/* The same in two steps, for a plan that a change overtakes. */
inline plan_apart(c, p, s) {
	atomic {
		ready(c) && pr[c].known && db.alive[s] && wanted(p, s) ->
		d_step {
			pr[c].op = PLANNED;
			pr[c].opPartition = p + 1;
			pr[c].opSession = s;
			pr[c].opFree = !kept(p);
			pr[c].dirty = 0                             /* the generation is as it was read */
		}
	}
}
inline apply(c) {
	atomic {
		pr[c].op == PLANNED && isAccepted && bounded((pr[c].opPartition - 1)) ->
		d_step {
			i = pr[c].opPartition - 1;
			if
#ifdef CLAIM_WITHOUT_RECHECK
			:: pr[c].opFree && takeable(i) && living(pr[c].opSession) ->
				j = pr[c].opSession;
				change_owner(pr[c].opPartition - 1, j);
				raise_generation()
			:: !pr[c].opFree && living(pr[c].opSession) ->
				db.part[i].target = pr[c].opSession;
				raise_generation()
#else
			:: pr[c].dirty || !living(pr[c].opSession)
			:: !pr[c].dirty && living(pr[c].opSession) && !kept(i) && takeable(i) ->
				j = pr[c].opSession;
				change_owner(pr[c].opPartition - 1, j);
				raise_generation()
			:: !pr[c].dirty && living(pr[c].opSession) && kept(i) ->
				db.part[i].target = pr[c].opSession;
				raise_generation()
#endif
			:: else
			fi;
			pr[c].dirty = GENERATION;
			no_operation(c)
		}
	}
}

/* accept.sql: a promoted server is accepted once every earlier owner has seen it or has stopped. */
#ifdef ACCEPT_WITHOUT_WATCH
#define accepts true
#else
#define accepts (runs >= TTL)
#endif
inline accept_server() {
	atomic {
		!isAccepted && accepts ->
		d_step {
#ifndef EPOCH_WITHOUT_GENERATION
			sgen++;
#endif
			accepted = timeline;
			raise_generation()
		}
	}
}

/* guard.sql, in a transaction of the application, with any ownership that the application remembers. */
#if defined(GUARD_CURRENT_EPOCH)
#define passes(c, p, e) (db.part[p].owner == session(c) && living(db.part[p].owner))
#else
#define passes(c, p, e) (db.part[p].epoch == e && e >= sgen * SGEN && living(db.part[p].owner))
#endif
inline guard(c) {
	atomic {
		pr[c].work == WORKING ->
		d_step {
			if
			:: passes(c, pr[c].workPartition, pr[c].workEpoch) -> pr[c].work = GUARDED
			:: else -> no_work(c)
			fi
		}
	}
}

inline commit(c) {
	atomic {
		pr[c].work == GUARDED ->
		d_step {
			/* PROMISE: fenced; no commit under an older epoch follows a commit under a newer one */
			assert(pr[c].workEpoch >= db.part[pr[c].workPartition].wrote);
			db.part[pr[c].workPartition].wrote = pr[c].workEpoch;
			no_work(c)
		}
	}
}

/* Work ends without a write, or its transaction is rolled back. */
inline end_work(c) {
	atomic { pr[c].work != IDLE -> d_step { no_work(c) } }
}

inline begin_work(c, p, pin) {
	atomic {
		pr[c].up && pr[c].work == IDLE && uses(c, p) && pr[c].has[p] == SHOWN ->
		d_step {
			pr[c].work = WORKING;
			pr[c].workPartition = p;
			pr[c].workEpoch = pr[c].epoch[p];
			pr[c].pinned = pin
		}
	}
}

/* An answer never arrives: the client does not know the result, and tries again. */
inline lose_answer(c) {
	atomic {
		pr[c].op != NONE && pr[c].op != PLANNED && mayLose ->
		d_step {
			if
			:: pr[c].op == READ -> pr[c].dirty = GENERATION
			:: else
			fi;
#ifdef COMPLETENESS
			losses--;
#endif
			no_operation(c)
		}
	}
}

/* ---- symmetry ---- */

/* If the model is symmetric in its processes and partitions (not with SAME_ID, APART, CLOSES or COMPLETENESS), states that
 * differ only in their names are one state: after each step, the state becomes the smallest of all its renamings, byte by
 * byte. This is not part of the protocol. It makes the trail of a violation hard to read, and reduces the states by a factor
 * of up to N! * P!. */
#ifdef SYMMETRIC
c_code {
	typedef struct Renamed {
		struct Process pr[N];
		struct Tables db, standby;
		uchar expires[2*N + 1], highest[P];
#ifdef LATE
		uchar lateSession, latePartition;
#endif
	} Renamed;

	static const uchar processes[][3] = { {0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0} };
	static const uchar partitions[][2] = { {0, 1}, {1, 0} };

	static uchar
	renamed_session(const uchar *to, uchar s)
	{
		return s == NO_SESSION ? NO_SESSION : 2*to[(s - 1)/2] + 1 + (s - 1)%2;
	}

	static void
	rename_tables(const uchar *c, const uchar *p, struct Tables *from, struct Tables *to)
	{
		int i;
		for (i = 0; i < P; i++) {
			struct Partition *x = &to->part[p[i]];
			*x = from->part[i];
			x->owner = renamed_session(c, x->owner);
			x->target = renamed_session(c, x->target);
		}
		for (i = 1; i <= 2*N; i++)
			to->alive[renamed_session(c, i)] = from->alive[i];
		to->incarnation = from->incarnation;
	}

	static void
	rename_all(const uchar *c, const uchar *p, Renamed *to)
	{
		int i, j;
		memset(to, 0, sizeof *to);
		for (i = 0; i < N; i++) {
			struct Process *from = &now.pr[i], *x = &to->pr[c[i]];
			memcpy(x, from, sizeof *x);
			for (j = 0; j < P; j++) {
				x->has[p[j]] = from->has[j];
				x->epoch[p[j]] = from->epoch[j];
				x->ansEpoch[p[j]] = from->ansEpoch[j];
				x->ansMoving[p[j]] = from->ansMoving[j];
			}
			if (from->opPartition > 0)
				x->opPartition = p[from->opPartition - 1] + 1;
			if (from->workEpoch > 0)
				x->workPartition = p[from->workPartition];
		}
		rename_tables(c, p, &now.db, &to->db);
		rename_tables(c, p, &now.standby, &to->standby);
		for (i = 1; i <= 2*N; i++)
			to->expires[renamed_session(c, i)] = now.expires[i];
		for (i = 0; i < P; i++)
			to->highest[p[i]] = now.highest[i];
#ifdef LATE
		to->lateSession = renamed_session(c, now.lateSession);
		to->latePartition = now.lateSession == NO_SESSION ? 0 : p[now.latePartition];
#endif
	}

	static void
	rename_to_smallest(void)
	{
		Renamed smallest, other;
		int i, j;
		for (i = 0; i < (N == 3 ? 6 : 2); i++)
			for (j = 0; j < P; j++) {
				rename_all(processes[i], partitions[j], &other);
				if (i == 0 && j == 0 || memcmp(&other, &smallest, sizeof other) < 0)
					smallest = other;
			}
		memcpy(now.pr, smallest.pr, sizeof now.pr);
		now.db = smallest.db;
		now.standby = smallest.standby;
		memcpy(now.expires, smallest.expires, sizeof now.expires);
		memcpy(now.highest, smallest.highest, sizeof now.highest);
#ifdef LATE
		now.lateSession = smallest.lateSession;
		now.latePartition = smallest.latePartition;
#endif
	}
}
#define step(s) atomic { s; c_code { rename_to_smallest(); } }
#else
#define step(s) s
#endif

/* ---- the processes of the model ---- */

proctype Client(byte me) {
	do
	:: step(register(me))
	:: step(answer_register(me))
	:: step(heartbeat(me))
	:: step(answer_heartbeat(me))
	:: step(read(me))
	:: step(answer_read(me))
	:: step(release(me, 0))
	:: step(announce(me))
	:: step(answer_release(me))
	:: step(lose_answer(me))
	:: step(close(me))
#if P > 1
	:: step(release(me, 1))
#endif
#ifdef LATE
	:: step(release_late(me, 0))
#if P > 1
	:: step(release_late(me, 1))
#endif
#endif
#ifdef APART
	:: step(plan_apart(me, 0, 1))
	:: step(plan_apart(me, 0, 3))
	:: step(apply(me))
#endif
#ifdef PINS
	:: step(begin_work(me, 0, 1))
#if P > 1
	:: step(begin_work(me, 1, 1))
#endif
#endif
#ifdef GUARDS
	:: step(begin_work(me, 0, 0))
#if P > 1
	:: step(begin_work(me, 1, 0))
#endif
	:: step(guard(me))
	:: step(commit(me))
	:: step(fence(me, 0))
	:: step(run_fence(me, 0))
#if P > 1
	:: step(fence(me, 1))
	:: step(run_fence(me, 1))
#endif
#endif
#if defined(PINS) || defined(GUARDS)
	:: step(end_work(me))
#endif
	od
}

/* Time, faults, and the steps that any client may do for all. */

inline tick() {
	d_step {
		for (i : 0 .. N-1) {
			if
			:: (pr[i].op == BEAT || pr[i].op == REGISTERED) && pr[i].age < TRUST -> pr[i].age++
			:: else
			fi;
			if
			:: pr[i].anchor > 0 && pr[i].anchor <= TRUST -> pr[i].anchor++
			:: else
			fi;
#ifndef NO_TRUST_DEADLINE
			if
			:: pr[i].trust > 1 -> pr[i].trust--
			:: pr[i].trust == 1 ->
				lose_trust(i);                          /* readers read the clock, so it ends at that instant */
				if
				:: pr[i].op == READ ->                  /* its answer will not count */
					no_operation(i);
					pr[i].dirty = GENERATION
				:: else
				fi
			:: else
			fi
#endif
		}
		for (i : 1 .. 2*N) {
			if
			:: expires[i] > 0 -> expires[i]--
			:: else
			fi
		}
		if
		:: runs < TTL -> runs++
		:: else
		fi;
#if DELAY > 0
		if
		:: settles > 0 -> settles--
		:: else
		fi;
#endif
#if GRACE > 0 && !defined(GRACE_WITHOUT_END)
		for (i : 0 .. P-1) {
			if
			:: waits[i] > 0 -> waits[i]--
			:: else
			fi
		}
#endif
		skip
	}
}

inline crash(c) {
	atomic { pr[c].up && crashes < CRASHES && !calm -> d_step { crashes++; gone(c) } }
}

inline begin_close(c) {
	atomic {
		pr[c].up && pr[c].known && !pr[c].ending && closes < CLOSES && !calm ->
		d_step {
			closes++;
			pr[c].ending = 1;
			withdraw_all(c);
			pr[c].dirty = GENERATION
		}
	}
}

/* The server restarts. Heartbeats wait for no flush, so some or all may be lost. The model lets all sessions expire, because
 * an expired session allows more behavior. The boot marker is lost, and open transactions end. */
inline new_run() {
	for (i : 1 .. 2*N) { expires[i] = 0 }
#ifndef EVICT_WITHOUT_MARK
	runs = 0;
#endif
	for (i : 0 .. N-1) {
		if
		:: pr[i].work == GUARDED -> no_work(i)
		:: else
		fi
	}
	skip
}

inline copy(to, from) {
	for (i : 0 .. P-1) {
		to.part[i].owner = from.part[i].owner;
		to.part[i].target = from.part[i].target;
		to.part[i].epoch = from.part[i].epoch;
		to.part[i].wrote = from.part[i].wrote
	}
	for (i : 1 .. 2*N) { to.alive[i] = from.alive[i] }
	to.incarnation = from.incarnation
}
inline no_standby() {
	for (i : 0 .. P-1) {
		standby.part[i].owner = 0;
		standby.part[i].target = 0;
		standby.part[i].epoch = 0;
		standby.part[i].wrote = 0
	}
	for (i : 1 .. 2*N) { standby.alive[i] = 0 }
	standby.incarnation = 0;
	replicated = 0
}

inline replicate() {
	atomic { !replicated && promotions == 0 && !calm -> d_step { copy(standby, db); replicated = 1 } }
}

inline promote() {
	atomic {
		replicated && promotions < PROMOTIONS && !calm ->
		d_step {
			promotions++;
			copy(db, standby);
			no_standby();
			timeline = 1;
			new_run();
			raise_generation()                          /* what a client does on an unaccepted timeline does not depend on it */
		}
	}
}

inline restart_database() {
	atomic {
		restarts < RESTARTS && !calm ->
		d_step {
			restarts++;
#ifdef ASYNC_OWNERSHIP
			if
			:: replicated -> copy(db, standby); no_standby()
			:: else
			fi;
#endif
			new_run()
		}
	}
}

proctype World() {
	do
#ifdef COMPLETENESS
	:: atomic { !calm -> tick() }
	:: atomic { !calm -> calm = 1 }
	:: atomic {
		calm && timeout ->                              /* no process can act at this instant */
		if
		:: quiet < QUIET -> quiet++; tick()
		:: else ->
			assert(bounds || shown(0));                         /* PROMISE: every partition has an owner, which knows that */
#if P > 1
			assert(bounds || shown(1));
#endif
			break
		fi
	}
#else
	:: step(tick())
#endif
	:: step(evict(1))
	:: step(evict(2))
	:: step(evict(3))
	:: step(evict(4))
#if N > 2
	:: step(evict(5))
	:: step(evict(6))
#endif
	:: step(plan(0, 1))
	:: step(plan(0, 2))
	:: step(plan(0, 3))
	:: step(plan(0, 4))
#if N > 2
	:: step(plan(0, 5))
	:: step(plan(0, 6))
#endif
#if P > 1
	:: step(plan(1, 1))
	:: step(plan(1, 2))
	:: step(plan(1, 3))
	:: step(plan(1, 4))
#if N > 2
	:: step(plan(1, 5))
	:: step(plan(1, 6))
#endif
#endif
#ifdef LATE
	:: step(run_late_release())
	:: step(drop_late_release())
#endif
#if CRASHES > 0
	:: step(crash(0))
	:: step(crash(1))
#if N > 2
	:: step(crash(2))
#endif
#endif
#if CLOSES > 0
	:: step(begin_close(0))
	:: step(begin_close(1))
#endif
#if RESTARTS > 0
	:: step(restart_database())
#endif
#if PROMOTIONS > 0 || defined(ASYNC_OWNERSHIP)
	:: step(replicate())
#endif
#if PROMOTIONS > 0
	:: step(promote())
	:: step(accept_server())
#endif
	od
}

init {
	d_step {
		for (i : 0 .. N-1) {
			pr[i].up = 1;
			pr[i].op = NONE;
			pr[i].work = IDLE;
			pr[i].ansOutcome = NOTHING;
			for (j : 0 .. P-1) { pr[i].has[j] = NOT_OWNED }
		}
		losses = LOSSES
	}
	atomic {
		run Client(0);
		run Client(1);
#if N > 2
		run Client(2);
#endif
		run World()
	}
}
