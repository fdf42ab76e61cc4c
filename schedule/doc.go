// Package schedule has the rules of schedules: when something ticks, and what becomes of ticks that were missed.
//
//	closing := schedule.Cron("0 2 * * *", "Europe/Berlin") // at times that the clocks of a place show
//	polling := schedule.Every(15 * time.Minute)            // at intervals of elapsed time
//
// A rule is a value without state, and its methods are pure functions: they look at no clock. [Rule.Next] and [Rule.Preview] tell the next
// ticks after one, [Rule.Due] which of those that have passed are to be run, and [Rule.Passed] how many have passed. A rule
// is stored as its text, and [Parse] makes it again.
//
// # Clocks that are set forward and back
//
// Where the clocks of a zone are set forward, what they leave out is made up for: a rule that names such times has one tick for all of them, at
// the instant at which the clocks jump. Where they are set back, times come twice: a rule has its ticks the first time only. So a rule of once a
// day ticks once a day, in each zone, on each day. This holds for changes at midnight, of half an hour, of a whole day, and for good.
//
// A rule that names all 24 hours, such as 0 * * * *, follows the hours as they pass: it ticks in both of two hours that look the same, and has nothing
// to make up for. A rule of 23 hours does not.
//
// # What a tick is
//
// A tick is an instant, the same for all processes. [Tick] has beside it what the clocks of the zone show, and both belong into what
// is stored: the zone data of hosts may differ, as places change their laws, and without the local time a host with other data would find the tick of
// the same local time again. With it, local times rise, whoever computes them.
package schedule
