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
// transactions that took longer, those that got another key, and those that got their ID before
// their transaction began. When a key of the partition may no longer be blocked, the search begins
// anew.
type search struct {
	from  int64 // rows with lower IDs are behind blocked keys
	next  int64 // so are those with lower IDs than this, as far as they were visible
	after int64 // transactions before this one may insert rows before next
	swept bool  // a sweep came since next was found
}

func newSearch() search { return search{from: math.MinInt64, next: math.MinInt64} }

// ended notes that a poll has searched up to an ID, which is that of the first row whose key is
// not blocked, or comes after all rows.
func (s *search) ended(a asked, to int64, q *poll) {
	s.after = min(s.after, q.next) // a new primary may begin with lower numbers of transactions
	switch {
	case a.from > s.from: // it began anew meanwhile
	case to < s.from:
		*s = search{from: to, next: to, after: q.next}
	case q.before >= s.after || a.whole && s.swept:
		*s = search{from: min(s.next, to), next: to, after: q.next}
	case a.whole:
		s.swept = true
	}
}
