module github.com/pgleases/pgleases/cmd/pgleases

go 1.25.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/pgleases/pgleases v0.0.0
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.47.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

// There is no published version yet. This line goes with the first release, as "go install" refuses modules with a replace.
replace github.com/pgleases/pgleases => ../..
