// Package consumer works through a table of the application, in order for each key, by one process
// for each partition, with pgx only.
package consumer
