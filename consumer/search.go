package consumer

import "math"

// A search is where polls look for rows of a partition whose keys are not blocked. Rows behind
// blocked keys stay for long, and may be many, so polls do not read them again and again: a search
// begins where the one before has ended. This is only about what polls find. A job reads its
// partition from the first row on, so the order in which rows are handled does not depend on it.
//
// A row may become visible after rows with higher IDs, because its transaction has committed
// later. So rows are searched again until all transactions have ended that were open when they
// were searched first, but no longer than until the second sweep from then on, which comes after
// half a minute or more.
//
// With each sweep of a partition, all its rows are searched. Only this finds some rows: those of
// transactions that took longer, those that got another key, those that got their ID before their
// transaction had a number, and those whose IDs were used before. When a key of the partition may no
// longer be blocked, the search begins anew.
type search struct {
	from  int64 // rows with lower IDs are behind blocked keys
	next  int64 // so are those with lower IDs than this, as far as they were visible
	after int64 // transactions before this one may insert rows before next
	swept bool  // a sweep came since next was found
}

// firstID is the lowest ID that a row can have.
const firstID = math.MinInt64

// unknown is the number after all transactions that have begun, until a poll has asked for it.
const unknown = math.MaxInt64

func newSearch() search { return search{from: firstID, next: firstID, after: unknown} }

// waits reports whether the search waits for transactions that may insert rows before its end.
func (s *search) waits() bool { return s.from < s.next || s.after == unknown }

// ended notes that a poll has searched up to an ID, which is that of the first row whose key is
// not blocked, or comes after all rows.
func (s *search) ended(a asked, to int64, q *poll) {
	after := int64(unknown)
	if q.exact {
		after = q.next
		s.after = min(s.after, after) // a new primary may begin with lower numbers of transactions
	}
	switch {
	case a.from > s.from: // it began anew meanwhile
	case to < s.from, to == s.next && s.from == s.next: // its last rows are gone, or nothing came
		*s = search{from: to, next: to}
	case s.from == s.next, q.before >= s.after, a.whole && s.swept:
		*s = search{from: min(s.next, to), next: to, after: after}
	case a.whole:
		s.swept = true
	}
}
