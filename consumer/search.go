package consumer

import "math"

// A search is where polls look for rows of a partition whose keys are not blocked. Rows behind
// blocked keys stay for long, and may be many, so polls do not read them again and again. This is
// only about what polls find. A job reads its partition from the first row on, so the order in
// which rows are handled does not depend on it.
//
// A search goes round after round, and a round goes from its first row to the last one of the
// partition. A poll looks at a limited number of rows, and the next one goes on where it stopped,
// so a round may take many polls. Meanwhile each poll also looks at the rows after the tail, which
// are new. So those are found at once, however many there are before them.
//
// A row may become visible after rows with higher IDs, because its transaction has committed
// later. So rounds search rows again until all transactions have ended that were open when they
// were searched first, but no longer than until the second sweep from then on, which comes after
// half a minute or more.
//
// With each sweep of a partition, a round searches all its rows. Only this finds some rows: rows of
// transactions that took longer, rows whose key was changed, rows that got their ID before their
// transaction had a number, and rows whose IDs were used before. A round also searches all rows
// after a key of the partition may no longer be blocked.
type search struct {
	from  int64 // rows with lower IDs are behind blocked keys
	next  int64 // rows with lower IDs than this are too, as far as they were visible
	after int64 // transactions before this one may insert rows before next
	swept bool  // a sweep came since next was found
	tail  int64 // rows with lower IDs were seen, or the round will come to them
	round round
	wants reach // of the next round
}

// A round is one search up to the last row, by one poll or by several.
type round struct {
	under   bool
	stopped bool // a poll has stopped before the last row
	reach   reach
	at      int64 // the row with which the next poll goes on
	before  int64 // the oldest transaction that was open before it began
}

// A reach is where a round begins.
type reach int

const (
	recent reach = iota // with the rows before which others may still come
	whole               // with the first row
	sweep               // with the first row, because the partition is swept
)

// A sight is what a poll has seen of a partition, from where the round goes on, and after the tail.
type sight struct {
	end         int64 // comes after all rows
	round, tail stop
}

// A stop is where a poll has stopped, unless it has seen all rows.
type stop struct {
	early bool
	id    int64 // of a row whose key is not blocked, or after the last row that it has seen
}

// firstID is the lowest ID that a row can have.
const firstID = math.MinInt64

// unknown is the number after all transactions that have begun, until a poll has asked for it.
const unknown = math.MaxInt64

func newSearch() search { return search{from: firstID, next: firstID, after: unknown, tail: firstID} }

// want makes a round begin with a row as early as that, the next one if one is under way.
func (s *search) want(r reach) { s.wants = max(s.wants, r) }

// begin begins a round, unless one is under way. before is the oldest transaction that was open.
func (s *search) begin(before int64) {
	if s.round.under {
		return
	}
	s.round = round{under: true, reach: s.wants, at: s.from, before: before}
	if s.wants > recent {
		s.round.at = firstID
	}
	s.wants = recent
}

// waits reports whether the search waits for transactions that may insert rows before its end.
func (s *search) waits() bool { return s.from < s.next || s.after == unknown }

// long reports whether the round has more rows than the last poll looked at.
func (s *search) long() bool { return s.round.stopped && s.round.at < s.tail }

// saw notes what a poll has seen.
func (s *search) saw(seen sight, q *poll) {
	if q.exact {
		s.after = min(s.after, q.next) // a new primary may begin with lower numbers of transactions
	}
	if !seen.round.early {
		s.ended(seen.end, q)
		return
	}
	s.round.stopped = true
	s.round.at, s.tail = seen.round.id, seen.end
	if seen.tail.early {
		s.tail = seen.tail.id
	}
}

// ended notes that a round has ended, and what comes after all rows.
func (s *search) ended(to int64, q *poll) {
	after := int64(unknown)
	if q.exact {
		after = q.next
	}
	r := s.round
	s.tail, s.round = to, round{at: to}
	switch {
	case to < s.from, to == s.next && s.from == s.next: // its last rows are gone, or nothing came
		s.know(to, to, 0)
	case s.from == s.next, r.before >= s.after, r.reach == sweep && s.swept:
		s.know(min(s.next, to), to, after)
	case r.reach == sweep:
		s.swept = true
	}
}

// know notes which rows are behind blocked keys, and which transactions may insert others there.
func (s *search) know(from, next, after int64) {
	s.from, s.next = from, next
	s.after, s.swept = after, false
}
