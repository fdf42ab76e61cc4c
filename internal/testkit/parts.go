package testkit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// NoPartCallsAnother checks the package in the working directory: the parts of a type are those of
// its fields whose types are declared there, except pointers and the named ones. No method of a
// part, nor of a type that embeds it, uses another part, or the type that has them. There must be
// so many parts.
func NoPartCallsAnother(t *testing.T, of string, least int, except ...string) {
	t.Helper()
	p := parsed(t)
	parts := partsOf(p.pkg, of, except)
	if len(parts) < least {
		t.Fatalf("only %v", parts)
	}
	for _, f := range p.functions {
		mine := partOf(p.receiver(f), parts)
		if mine == "" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || p.info.Selections[s] == nil {
				return true
			}
			receiver := p.info.Selections[s].Recv()
			other := partOf(receiver, parts)
			if nameOf(receiver) == of || other != "" && other != mine {
				at := p.set.Position(n.Pos())
				t.Errorf("%v: %s.%s uses %s.%s", at, mine, f.Name.Name, nameOf(receiver), s.Sel.Name)
			}
			return true
		})
	}
}

// NoPartWritesAnother checks the package in the working directory: the fields of a part, and of the
// further types, are written only by methods of that type, and by the function newT of a type T.
// The type that has the parts is not checked, nor are functions that get it.
func NoPartWritesAnother(t *testing.T, of string, further ...string) {
	t.Helper()
	p := parsed(t)
	parts := partsOf(p.pkg, of, nil)
	for _, name := range further {
		if p.pkg.Scope().Lookup(name) == nil {
			t.Errorf("no type %s", name)
		}
		parts[name] = true
	}
	for _, f := range p.functions {
		mine := nameOf(p.receiver(f))
		if mine == of {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if p.gets(n, of) {
				return false
			}
			for _, to := range written(n) {
				owner, field := p.fieldOf(to, parts)
				if owner != "" && owner != mine && !isNew(f, owner) {
					at, who := p.set.Position(to.Pos()), strings.TrimPrefix(mine+"."+f.Name.Name, ".")
					t.Errorf("%v: %s writes %s.%s", at, who, owner, field)
				}
			}
			return true
		})
	}
}

// isNew reports whether a function is newT of a type T.
func isNew(f *ast.FuncDecl, name string) bool {
	return f.Recv == nil && strings.EqualFold(f.Name.Name, "new"+name)
}

// gets reports whether a node is a function that gets a pointer to the type.
func (p parsedPackage) gets(n ast.Node, name string) bool {
	var f *ast.FuncType
	switch n := n.(type) {
	case *ast.FuncDecl:
		f = n.Type
	case *ast.FuncLit:
		f = n.Type
	default:
		return false
	}
	return slices.ContainsFunc(f.Params.List, func(param *ast.Field) bool {
		return types.ExprString(param.Type) == "*"+name
	})
}

// written returns what a statement, or a call that changes its first argument, writes.
func written(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Lhs
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		return []ast.Expr{n.Key, n.Value}
	case *ast.CallExpr:
		switch types.ExprString(n.Fun) {
		case "delete", "clear", "maps.Copy", "maps.DeleteFunc":
			return n.Args[:1]
		}
	}
	return nil
}

// A parsed package is the one in the working directory, without its tests.
type parsedPackage struct {
	pkg       *types.Package
	info      *types.Info
	set       *token.FileSet
	functions []*ast.FuncDecl
}

func parsed(t *testing.T) parsedPackage {
	t.Helper()
	p := parsedPackage{set: token.NewFileSet()}
	var files []*ast.File
	names := Must(filepath.Glob("*.go"))(t)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, Must(parser.ParseFile(p.set, name, nil, 0))(t))
		}
	}
	p.info = &types.Info{
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
		Defs:       make(map[*ast.Ident]types.Object),
	}
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}} // what is imported is not looked at
	p.pkg, _ = config.Check("parts", p.set, files, p.info)
	for _, file := range files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				p.functions = append(p.functions, f)
			}
		}
	}
	return p
}

// receiver returns the type of a method's receiver; nil for a function without one.
func (p parsedPackage) receiver(f *ast.FuncDecl) types.Type {
	if r := p.info.Defs[f.Name].(*types.Func).Signature().Recv(); r != nil {
		return r.Type()
	}
	return nil
}

// fieldOf returns the part whose field an expression is, or is an element or a field of.
func (p parsedPackage) fieldOf(of ast.Expr, parts map[string]bool) (part, field string) {
	for {
		switch x := of.(type) {
		case *ast.IndexExpr:
			of = x.X
		case *ast.SliceExpr:
			of = x.X
		case *ast.ParenExpr:
			of = x.X
		case *ast.StarExpr:
			of = x.X
		case *ast.SelectorExpr:
			s := p.info.Selections[x]
			if s == nil || s.Kind() != types.FieldVal {
				return "", ""
			}
			part = nameOf(s.Recv())
			if parts[part] {
				return part, x.Sel.Name
			}
			if _, pointer := s.Recv().(*types.Pointer); pointer {
				return "", ""
			}
			of = x.X
		default:
			return "", ""
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
	if t == nil {
		return ""
	}
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	name := nameOf(t)
	if parts[name] {
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
		part := partOf(s.Field(i).Type(), parts)
		if part != "" {
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
