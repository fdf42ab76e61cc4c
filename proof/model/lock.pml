/*
 * The protocol of named locks, for Spin: processes that take one lock, the database that they share, time, and faults. It
 * shares with lease.pml the parts that keep a session: heartbeats, trust, evictions, promotions. doc.go says what is left out.
 *
 * Every statement is one step, because it holds the lock's mutex, and the next statement has a new snapshot. Sending is a
 * separate step, because a message may arrive late. The client's use of the answer is a separate step too, because the answer
 * may be lost.
 */

#define N 2                 /* processes */
#ifndef MAXTOKEN
#define MAXTOKEN 3          /* acquisitions within a server generation */
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
#define TTL   2             /* ticks until a session expires, by the database's clock */
#define TRUST 2             /* ticks that a client trusts itself, from before it sent the heartbeat: the margin is shorter than a tick */
#define SGEN   16

/* ---- the database ---- */

mtype:state = { NO_ROW, WAITS, HELD };

typedef Row {               /* a process's acquisition; a process has one at a time */
	mtype:state state;
	bit turn, shared;       /* turn: which of its sessions */
	bit before;             /* an earlier acquisition of the session, with another nonce */
	byte ticket, token
}
typedef Tables {
	Row row[N];
	bit alive[2*N];         /* by session, 2c + turn: it has a row in clients */
	byte tokens;            /* drawn in this server generation */
	byte wrote              /* token under which the last guarded transaction of an exclusive holder committed */
}
Tables db;
Tables standby;             /* an earlier state of the tables */
bit replicated;
byte expires[2*N];
byte runs;                  /* ticks since the server's run began, at most TTL */
byte sgen;
bit timeline, accepted;

/* ---- the processes ---- */

mtype:stage     = { FREE, SENT, WAITING, HOLDS, LOST, GIVES_BACK };
mtype:message   = { NONE, ACQUIRE, GRANTED, QUEUED, REFUSED };  /* the last three are answers */
mtype:work      = { IDLE, WORKING, GUARDED };

typedef Process {
	bit known, turn;            /* known: it knows its session as registered */
	byte trust;                 /* ticks left until the trust deadline; 0: none */
	bit timeline;               /* the timeline on which its lock was confirmed */
	bit broken;                 /* trust ended since the acquisition began */
	bit toConfirm;              /* another server incarnation must confirm its lock before trust continues */
	mtype:stage stage;
	bit shared;
	byte token;

	/* the acquisition's message, and its answer */
	mtype:message message;
	bit msgTurn, msgTimeline;   /* the session, and the server's run, that it names */
	byte life;                  /* ticks until its last instant */
	byte msgToken;

	/* a heartbeat's answer is pending */
	bit beat, beatAlive, beatTimeline;
	byte age;

	mtype:work work;            /* under any token that it ever had */
	byte workToken
}
Process pr[N];

byte highest;               /* the highest token that any server ever gave out */
byte restarts, promotions;
hidden byte i, j, k;
hidden byte held, room;

#define session(c)      (2*c + pr[c].turn)
#define rowSession(c)   (2*c + db.row[c].turn)
#define isAccepted       (timeline == accepted)
#define uses(c)         (pr[c].stage == HOLDS && pr[c].trust > 0)
#define bounded         (db.tokens < MAXTOKEN)

#ifdef GUARD_WITHOUT_LOCK
#define guarded(c)      false
#else
/* A guarded transaction of any process is open under the row's token. */
#define guarded(c)      (pr[0].work == GUARDED && pr[0].workToken == db.row[c].token || \
                         pr[1].work == GUARDED && pr[1].workToken == db.row[c].token)
#endif

#ifdef TAKEN_BY_EXPIRY
#define ended(c)         (expires[rowSession(c)] == 0)
#else
#define ended(c)         (!db.alive[rowSession(c)])
#endif
#ifdef TOKEN_WITHOUT_GENERATION
#define nextToken       (db.tokens + 1)
#else
#define nextToken       (sgen * SGEN + db.tokens + 1)
#endif
#ifdef GRANT_UNACCEPTED
#define grants          true
#else
#define grants          isAccepted
#endif

/* ---- shared parts of statements ---- */

inline draw(c) {
	db.row[c].token = nextToken;
	db.tokens++;
	assert(db.row[c].token > highest);               /* PROMISE: tokens rise, and never repeat */
	highest = db.row[c].token;
	db.row[c].state = HELD
}

inline no_row(c) {
	db.row[c].state = NO_ROW;
	db.row[c].turn = 0;
	db.row[c].before = 0;
	db.row[c].shared = 0;
	db.row[c].ticket = 0;
	db.row[c].token = 0
}

/* lock_turn: rows of ended sessions without a guard are deleted. Then the processes at the head of the queue that may get the
 * lock get it. */
inline lock_turn() {
	for (i : 0 .. N-1) {
		if
		:: db.row[i].state != NO_ROW && ended(i) && !guarded(i) -> no_row(i)
		:: else
		fi
	}
	held = 0;
	room = 1;
	for (k : 1 .. N) {          /* tickets are dense */
		for (i : 0 .. N-1) {
			if
			:: db.row[i].state != NO_ROW && db.row[i].ticket == k && room ->
				if
				:: db.row[i].state == HELD -> held = 1; room = db.row[i].shared
				:: db.row[i].state == WAITS && (!held || db.row[i].shared) && grants && bounded ->
					draw(i);
					held = 1;
					room = db.row[i].shared
				:: else -> room = 0
				fi
			:: else
			fi
		}
	}
	skip
}

/* Later tickets move up to fill gaps, which the tables need not do. */
inline close_up() {
	for (k : 1 .. N) {
		if
		:: !(db.row[0].state != NO_ROW && db.row[0].ticket == k) && !(db.row[1].state != NO_ROW && db.row[1].ticket == k) ->
			for (i : 0 .. N-1) {
				if
				:: db.row[i].state != NO_ROW && db.row[i].ticket > k -> db.row[i].ticket--
				:: else
				fi
			}
		:: else
		fi
	}
	skip
}

#define others(c)       (db.row[1 - c].state != NO_ROW)
#define follows(c)      (!others(c) || db.row[1 - c].state == HELD && db.row[1 - c].shared && pr[c].shared)

inline forget(c) {
	pr[c].stage = FREE;
	pr[c].token = 0;
	pr[c].shared = 0;
	pr[c].broken = 0
}

inline no_message(c) {
	pr[c].message = NONE;
	pr[c].msgTurn = 0;
	pr[c].msgTimeline = 0;
	pr[c].msgToken = 0;
	pr[c].life = 0
}

inline lose_trust(c) {
	pr[c].trust = 0;
	pr[c].broken = (pr[c].broken || pr[c].stage == SENT || pr[c].stage == WAITING);
	if
	:: pr[c].stage == HOLDS -> pr[c].stage = LOST    /* its row stays until it is released, or the session evicted */
	:: else
	fi
}

/* ---- the session ---- */

inline register(c) {
	atomic {
		!pr[c].known && !pr[c].beat ->
		d_step {
			db.alive[session(c)] = 1;
			expires[session(c)] = TTL;
			pr[c].known = 1;
			pr[c].timeline = timeline;
			pr[c].trust = TRUST
		}
	}
}

inline heartbeat(c) {
	atomic {
		pr[c].known && !pr[c].beat ->
		d_step {
			pr[c].beat = 1;
			pr[c].beatAlive = db.alive[session(c)];
			pr[c].beatTimeline = timeline;
			if
			:: db.alive[session(c)] -> expires[session(c)] = TTL
			:: else
			fi
		}
	}
}

inline answered(c) {
	pr[c].beat = 0;
	pr[c].beatAlive = 0;
	pr[c].beatTimeline = 0;
	pr[c].age = 0
}

inline answer_heartbeat(c) {
	atomic {
		pr[c].beat ->
		d_step {
			if
			:: !pr[c].beatAlive ->                      /* evicted: all that the database had of it is nobody's */
				lose_trust(c);
				forget(c);
				pr[c].toConfirm = 0;
				pr[c].known = 0;
				if
				:: pr[c].turn < REREGISTERS -> pr[c].turn = 1
				:: else -> pr[c].known = 1              /* bounds the model: it stays without trust */
				fi
			:: else ->
				if
#ifdef TRUST_BEFORE_CONFIRMED
				:: true ->
#else
				:: pr[c].beatTimeline == pr[c].timeline || pr[c].stage != HOLDS ->
#endif
					pr[c].timeline = pr[c].beatTimeline;
					pr[c].toConfirm = 0;
					if
					:: pr[c].age < TRUST && TRUST - pr[c].age > pr[c].trust -> pr[c].trust = TRUST - pr[c].age
					:: else
					fi
				:: else -> pr[c].toConfirm = 1
				fi
			fi;
			answered(c)
		}
	}
}

inline lose_heartbeat(c) { atomic { pr[c].beat -> d_step { answered(c) } } }

/* locklook.sql, on another server incarnation: the process has the lock under this token, or the lock is lost. */
inline confirm(c) {
	atomic {
		pr[c].toConfirm && !pr[c].beat && db.alive[session(c)] ->
		d_step {
			if
			:: pr[c].stage == HOLDS && !(db.row[c].state == HELD && db.row[c].token == pr[c].token) -> pr[c].stage = LOST
			:: else
			fi;
			if
			:: db.row[c].before && rowSession(c) == session(c) && !guarded(c) -> no_row(c)   /* nobody knows of it */
			:: else
			fi;
			pr[c].toConfirm = 0;
			pr[c].timeline = timeline
		}
	}
}

/* ---- the lock ---- */

inline begin(c, share) {
	atomic {
		pr[c].stage == FREE && pr[c].message == NONE && pr[c].known && pr[c].trust > 0 ->
		d_step {
			pr[c].stage = SENT;
			pr[c].shared = share;
			pr[c].message = ACQUIRE;
			pr[c].msgTurn = pr[c].turn;
			pr[c].msgTimeline = pr[c].timeline;
			pr[c].life = pr[c].trust;
			db.row[c].before = (db.row[c].state != NO_ROW);
			standby.row[c].before = (standby.row[c].state != NO_ROW)
		}
	}
}

/* lockacquire.sql: at any time, even long after its client gave it up. */
#ifdef ARRIVES_AT_ANY_TIME
#define late(c)         false
#else
#define late(c)         (pr[c].life == 0)
#endif
inline acquire(c) {
	atomic {
		pr[c].message == ACQUIRE && bounded ->
		d_step {
			if
			:: late(c) || pr[c].msgTimeline != timeline || !grants || !db.alive[2*c + pr[c].msgTurn] -> pr[c].message = REFUSED
			:: else ->
				assert(pr[c].stage != FREE || !db.alive[session(c)] || pr[c].msgTurn != pr[c].turn); /* PROMISE: the client of every lock knows of it */
				lock_turn();
				if
				:: db.row[c].state != NO_ROW -> pr[c].message = REFUSED  /* of before: there is room for one */
				:: else ->
					db.row[c].turn = pr[c].msgTurn;
					db.row[c].shared = pr[c].shared;
					db.row[c].ticket = 1 + others(c);
					if
					:: others(c) -> db.row[1 - c].ticket = 1
					:: else
					fi;
					if
					:: follows(c) ->
						draw(c);
						pr[c].message = GRANTED;
						pr[c].msgToken = db.row[c].token
					:: else ->
						db.row[c].state = WAITS;
						pr[c].message = QUEUED
					fi
				fi
			fi
		}
	}
}

/* The message is lost on its way. */
inline lose_message(c) { atomic { pr[c].message != NONE -> d_step { no_message(c); give_up(c) } } }

/* The client gives it up: the message may still arrive. */
inline give_up(c) {
	if
	:: pr[c].stage == SENT -> pr[c].stage = GIVES_BACK
	:: else
	fi
}
inline abandon(c) { atomic { pr[c].stage == SENT || pr[c].stage == WAITING -> d_step { pr[c].stage = GIVES_BACK } } }

/* A grant counts only under the session and the trust of its request, and on the server incarnation that the client knows. */
#ifdef GRANT_OF_BEFORE
#define counts(c)       true
#else
#define counts(c)       (pr[c].known && pr[c].trust > 0 && !pr[c].broken && !pr[c].toConfirm && pr[c].msgTimeline == pr[c].timeline)
#endif
inline hold(c) {
	if
	:: counts(c) && pr[c].msgTurn == pr[c].turn ->
		pr[c].stage = HOLDS;
		pr[c].broken = 0;
		assert(!uses(c) || !uses((1 - c)) || pr[c].shared && pr[1 - c].shared)   /* PROMISE: exclusive */
	:: else -> pr[c].stage = GIVES_BACK
	fi
}
inline answer_acquire(c) {
	atomic {
		pr[c].message == GRANTED || pr[c].message == QUEUED || pr[c].message == REFUSED ->
		d_step {
			if
			:: pr[c].stage == SENT && pr[c].message == GRANTED -> pr[c].token = pr[c].msgToken; hold(c)
			:: pr[c].stage == SENT && pr[c].message == QUEUED -> pr[c].stage = WAITING
			:: pr[c].stage == SENT && pr[c].message == REFUSED -> forget(c)
			:: else
			fi;
			no_message(c)
		}
	}
}

/* locklook.sql: a waiting process polls whether it has the lock. */
inline look(c) {
	atomic {
		pr[c].stage == WAITING && db.alive[session(c)] && timeline == pr[c].timeline ->
		d_step {
			lock_turn();
			close_up();
			if
			:: db.row[c].state == HELD && rowSession(c) == session(c) && !db.row[c].before ->
				pr[c].token = db.row[c].token;
				pr[c].msgTurn = pr[c].turn;
				pr[c].msgTimeline = timeline;
				pr[c].broken = 0;
				hold(c);
				no_message(c)
			:: else
			fi
		}
	}
}

/* lockrelease.sql: of a lock that is held or lost, or of an acquisition that was given up. The client forgets it once no row
 * exists or can be written. */
#define has(c)          (db.row[c].state != NO_ROW && rowSession(c) == session(c) && !db.row[c].before)
#ifdef RELEASE_BY_NAME
#define releases(c, r)  (db.row[r].state == HELD)
#else
#define releases(c, r)  (r == c && has(c))
#endif
#ifdef ARRIVES_AT_ANY_TIME
#define over(c)         true
#else
#define over(c)         (pr[c].message != ACQUIRE || pr[c].life == 0)
#endif
inline release(c) {
	atomic {
		(pr[c].stage == HOLDS || pr[c].stage == LOST || pr[c].stage == GIVES_BACK) && pr[c].known && (timeline == pr[c].timeline) ->
		d_step {
			for (j : 0 .. N-1) {
				if
				:: releases(c, j) && !guarded(j) -> no_row(j)
				:: else
				fi
			}
			lock_turn();
			close_up();
			if
			:: !has(c) && over(c) -> forget(c)
			:: else -> pr[c].stage = GIVES_BACK
			fi
		}
	}
}

/* A sweep, or any process's call with that name. */
inline sweep() { atomic { db.row[0].state != NO_ROW || db.row[1].state != NO_ROW -> d_step { lock_turn(); close_up() } } }

/* ---- work ---- */

inline begin_work(c) {
	atomic { uses(c) && !pr[c].shared && pr[c].work == IDLE -> d_step { pr[c].work = WORKING; pr[c].workToken = pr[c].token } }
}
inline no_work(c) { pr[c].work = IDLE; pr[c].workToken = 0 }

/* guard_lock, with any token that it remembers. */
#define passes(t, r)    (db.row[r].state == HELD && db.row[r].token == t && db.alive[rowSession(r)])
inline guard(c) {
	atomic {
		pr[c].work == WORKING ->
		d_step {
			if
			:: passes(pr[c].workToken, 0) || passes(pr[c].workToken, 1) -> pr[c].work = GUARDED
			:: else -> no_work(c)
			fi
		}
	}
}
inline commit(c) {
	atomic {
		pr[c].work == GUARDED ->
		d_step {
			assert(pr[c].workToken >= db.wrote);         /* PROMISE: fenced */
			db.wrote = pr[c].workToken;
			no_work(c)
		}
	}
}

/* ---- the world ---- */

proctype Client(byte me) {
	do
	:: register(me)
	:: heartbeat(me)
	:: answer_heartbeat(me)
	:: lose_heartbeat(me)
	:: begin(me, 0)
#ifdef SHARED
	:: begin(me, 1)
#endif
	:: acquire(me)
	:: answer_acquire(me)
	:: lose_message(me)
	:: abandon(me)
	:: look(me)
	:: release(me)
#if PROMOTIONS > 0
	:: confirm(me)
#endif
#ifdef GUARDS
	:: begin_work(me)
	:: guard(me)
	:: commit(me)
	:: atomic { pr[me].work != IDLE -> d_step { no_work(me) } }
#endif
	od
}

inline tick() {
	d_step {
		for (i : 0 .. N-1) {
			if
			:: pr[i].beat && pr[i].age < TRUST -> pr[i].age++
			:: else
			fi;
			if
			:: pr[i].life > 0 -> pr[i].life--
			:: else
			fi;
#ifndef NO_TRUST_DEADLINE
			if
			:: pr[i].trust > 1 -> pr[i].trust--
			:: pr[i].trust == 1 -> lose_trust(i)
			:: else
			fi
#endif
		}
		for (i : 0 .. 2*N-1) {
			if
			:: expires[i] > 0 -> expires[i]--
			:: else
			fi
		}
		if
		:: runs < TTL -> runs++
		:: else
		fi
	}
}

inline evict(s) { atomic { db.alive[s] && expires[s] == 0 && isAccepted && runs >= TTL -> d_step { db.alive[s] = 0 } } }

inline new_run() {
	for (i : 0 .. 2*N-1) { expires[i] = 0 }
	runs = 0;
	for (i : 0 .. N-1) {
		if
		:: pr[i].work == GUARDED -> no_work(i)
		:: else
		fi
	}
	skip
}

inline copy(to, from) {
	for (i : 0 .. N-1) {
		to.row[i].state = from.row[i].state;
		to.row[i].turn = from.row[i].turn;
		to.row[i].before = from.row[i].before;
		to.row[i].shared = from.row[i].shared;
		to.row[i].ticket = from.row[i].ticket;
		to.row[i].token = from.row[i].token
	}
	for (i : 0 .. 2*N-1) { to.alive[i] = from.alive[i] }
	to.tokens = from.tokens;
	to.wrote = from.wrote
}
inline no_standby() {
	for (i : 0 .. N-1) {
		standby.row[i].state = NO_ROW;
		standby.row[i].turn = 0;
		standby.row[i].before = 0;
		standby.row[i].shared = 0;
		standby.row[i].ticket = 0;
		standby.row[i].token = 0
	}
	for (i : 0 .. 2*N-1) { standby.alive[i] = 0 }
	standby.tokens = 0;
	standby.wrote = 0;
	replicated = 0
}

proctype World() {
	do
	:: tick()
	:: evict(0)
	:: evict(1)
	:: evict(2)
	:: evict(3)
	:: sweep()
#if RESTARTS > 0
	:: atomic { restarts < RESTARTS -> d_step { restarts++; new_run() } }
#endif
#if PROMOTIONS > 0
	:: atomic { !replicated && promotions == 0 -> d_step { copy(standby, db); replicated = 1 } }
	:: atomic { replicated && promotions < PROMOTIONS -> d_step { promotions++; copy(db, standby); no_standby(); timeline = 1; new_run() } }
	:: atomic { !isAccepted && runs >= TTL -> d_step { sgen++; accepted = timeline } }
#endif
	od
}

init {
	d_step {
		for (i : 0 .. N-1) {
			db.row[i].state = NO_ROW;
			standby.row[i].state = NO_ROW;
			pr[i].stage = FREE;
			pr[i].message = NONE;
			pr[i].work = IDLE
		}
	}
	atomic {
		run Client(0);
		run Client(1);
		run World()
	}
}
