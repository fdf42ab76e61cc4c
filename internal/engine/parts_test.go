package engine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// The parts are the types of the engine's fields that are declared in this package.
func TestNoPartCallsAnother(t *testing.T) {
	set := token.NewFileSet()
	var files []*ast.File
	names, _ := filepath.Glob("*.go")
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := &types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection), Defs: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}} // what is imported is not looked at
	pkg, _ := config.Check("engine", set, files, info)
	parts := make(map[string]bool)
	fields := pkg.Scope().Lookup("engine").Type().Underlying().(*types.Struct)
	for i := range fields.NumFields() {
		if named, ok := fields.Field(i).Type().(*types.Named); ok && named.Obj().Pkg() == pkg && named.Obj().Name() != "Config" {
			parts[named.Obj().Name()] = true
		}
	}
	if len(parts) < 10 {
		t.Fatalf("only %v", parts)
	}
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			of := nameOf(info.Defs[f.Name].(*types.Func).Signature().Recv().Type())
			if !parts[of] {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && info.Selections[s] != nil {
					if other := nameOf(info.Selections[s].Recv()); other == "engine" || parts[other] && other != of {
						t.Errorf("%v: %s.%s uses %s.%s", set.Position(n.Pos()), of, f.Name.Name, other, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// nameOf returns the name of a type, or of what it points to.
func nameOf(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name()
	}
	return ""
}

// emptyPackages imports nothing but names: types of other packages are invalid, and of no interest.
type emptyPackages struct{}

func (emptyPackages) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}
