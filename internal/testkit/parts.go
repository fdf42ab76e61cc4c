package testkit

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

// NoPartCallsAnother checks the package in the working directory: the parts of a type are those of its
// fields whose types are declared there, except pointers and the named ones. No method of a part, nor of
// a type that embeds it, uses another part, or the type that has them. There must be so many parts.
func NoPartCallsAnother(t *testing.T, of string, least int, except ...string) {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	names := Must(filepath.Glob("*.go"))(t)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, Must(parser.ParseFile(set, name, nil, 0))(t))
		}
	}
	info := &types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection), Defs: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}} // what is imported is not looked at
	pkg, _ := config.Check("parts", set, files, info)
	parts := partsOf(pkg, of, except)
	if len(parts) < least {
		t.Fatalf("only %v", parts)
	}
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			mine := partOf(info.Defs[f.Name].(*types.Func).Signature().Recv().Type(), parts)
			if mine == "" {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok || info.Selections[s] == nil {
					return true
				}
				receiver := info.Selections[s].Recv()
				other := partOf(receiver, parts)
				if nameOf(receiver) == of || other != "" && other != mine {
					t.Errorf("%v: %s.%s uses %s.%s", set.Position(n.Pos()), mine, f.Name.Name, nameOf(receiver), s.Sel.Name)
				}
				return true
			})
		}
	}
}

func partsOf(pkg *types.Package, of string, except []string) map[string]bool {
	parts := make(map[string]bool)
	fields := pkg.Scope().Lookup(of).Type().Underlying().(*types.Struct)
	for i := range fields.NumFields() {
		named, ok := fields.Field(i).Type().(*types.Named)
		if ok && named.Obj().Pkg() == pkg {
			parts[named.Obj().Name()] = true
		}
	}
	for _, name := range except {
		delete(parts, name)
	}
	return parts
}

// partOf returns the part that a type is, or that it embeds.
func partOf(t types.Type, parts map[string]bool) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if name := nameOf(t); parts[name] {
		return name
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return ""
	}
	for i := range s.NumFields() {
		if !s.Field(i).Embedded() {
			continue
		}
		if part := partOf(s.Field(i).Type(), parts); part != "" {
			return part
		}
	}
	return ""
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
