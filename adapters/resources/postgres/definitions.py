"""The queries behind a catalog: kind, name and definition of every object that an extension did not bring.

No definition bears an oid, an owner or the name of a role: in privileges there is the object's owner, the public, and
others, who are all alike here; but what the reader was given for this reading is not told. Options of user mappings may
hold passwords, and only a hash of them is told.
"""

from __future__ import annotations

OURS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
_FREE = (
    "NOT EXISTS (SELECT FROM pg_depend dep WHERE dep.classid = '{catalog}'::regclass AND dep.objid = {oid} "
    "AND dep.deptype = 'e')"
)
_ACL = (
    "(SELECT string_agg(DISTINCT CASE item.grantee WHEN 0 THEN 'public' WHEN {owner} THEN 'owner' ELSE 'a role' END "
    "|| ' ' || item.privilege_type || CASE WHEN item.is_grantable THEN ' with grant option' ELSE '' END, ', ') "
    "FROM aclexplode(coalesce({acl}, acldefault('{kind}', {owner}))) item "
    "WHERE item.grantee = {owner} OR item.grantee <> (SELECT oid FROM pg_roles WHERE rolname = session_user))"
)


def _acl(acl: str, kind: str, owner: str) -> str:
    return _ACL.format(acl=acl, kind=kind, owner=owner)


def _free(catalog: str, oid: str) -> str:
    return _FREE.format(catalog=catalog, oid=oid)


_RELATIONS = f"""
SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'f' THEN 'foreign table'
         WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'c' THEN 'composite type' END,
  format('%I.%I', n.nspname, c.relname),
  jsonb_strip_nulls(jsonb_build_object(
    'columns', (SELECT jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'persistence', nullif(c.relpersistence, 'p'), 'options', to_jsonb(c.reloptions),
    'access method', (SELECT nullif(amname, 'heap') FROM pg_am WHERE oid = c.relam),
    'row security', nullif(c.relrowsecurity, false), 'forced row security', nullif(c.relforcerowsecurity, false),
    'replica identity', nullif(c.relreplident, CASE WHEN c.relkind IN ('r', 'p', 'm') THEN 'd' ELSE 'n' END),
    'of type', CASE WHEN c.reloftype <> 0 THEN format_type(c.reloftype, NULL) END,
    'inherits', (SELECT jsonb_agg(inhparent::regclass::text ORDER BY inhseqno) FROM pg_inherits WHERE inhrelid = c.oid),
    'partitions', CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) END,
    'bound', pg_get_expr(c.relpartbound, c.oid),
    'definition', CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
    'filled', CASE WHEN c.relkind = 'm' THEN c.relispopulated END,
    'server', (SELECT s.srvname || ' ' || coalesce(f.ftoptions::text, '') FROM pg_foreign_table f
               JOIN pg_foreign_server s ON s.oid = f.ftserver WHERE f.ftrelid = c.oid),
    'privileges', CASE WHEN c.relkind <> 'c' THEN {_acl("c.relacl", "r", "c.relowner")} END))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'c') AND c.relpersistence <> 't'
AND {OURS} AND {_free("pg_class", "c.oid")}
"""
_COLUMNS = f"""
SELECT 'column', format('%I.%I.%I', n.nspname, c.relname, a.attname),
  jsonb_strip_nulls(jsonb_build_object(
    'type', format_type(a.atttypid, a.atttypmod), 'not null', nullif(a.attnotnull, false),
    'default', pg_get_expr(d.adbin, d.adrelid), 'generated', nullif(a.attgenerated, ''),
    'identity', nullif(a.attidentity, ''), 'compression', nullif(a.attcompression, ''),
    'storage', CASE WHEN a.attstorage <> t.typstorage THEN a.attstorage END, 'options', to_jsonb(a.attoptions),
    'foreign options', to_jsonb(a.attfdwoptions), 'statistics', nullif(a.attstattarget, -1),
    'collation', CASE WHEN a.attcollation <> t.typcollation THEN a.attcollation::regcollation::text END,
    'privileges', CASE WHEN a.attacl IS NOT NULL THEN {_acl("a.attacl", "c", "c.relowner")} END))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'c') AND c.relpersistence <> 't'
AND {OURS} AND {_free("pg_class", "c.oid")}
"""
_CONSTRAINTS = f"""
SELECT 'constraint',
  format('%s.%I', coalesce(nullif(k.conrelid, 0)::regclass::text, nullif(k.contypid, 0)::regtype::text), k.conname),
  pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace
WHERE {OURS} AND {_free("pg_class", "k.conrelid")} AND {_free("pg_type", "k.contypid")}
"""
_INDEXES = f"""
SELECT 'index', format('%I.%I', n.nspname, c.relname),
  pg_get_indexdef(c.oid) || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END
  || CASE WHEN i.indisreplident THEN ' IDENTITY' ELSE '' END
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relpersistence <> 't' AND {OURS} AND {_free("pg_class", "i.indrelid")}
"""
_RULES = f"""
SELECT 'rule', format('%s.%I', r.ev_class::regclass, r.rulename), pg_get_ruledef(r.oid) || ' ' || r.ev_enabled::text
FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.rulename <> '_RETURN' AND {OURS} AND {_free("pg_class", "c.oid")}
"""
_TRIGGERS = f"""
SELECT 'trigger', format('%s.%I', t.tgrelid::regclass, t.tgname),
  pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT t.tgisinternal AND {OURS} AND {_free("pg_class", "c.oid")}
"""
_FUNCTIONS = f"""
SELECT CASE p.prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END,
  format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
  CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE (
    SELECT jsonb_build_object('result', p.prorettype::regtype::text, 'kind', g.aggkind, 'step', g.aggtransfn::text,
      'final', g.aggfinalfn::text, 'combine', g.aggcombinefn::text, 'state', g.aggtranstype::regtype::text,
      'start', g.agginitval, 'moving', g.aggmtransfn::text, 'sort', g.aggsortop::regoperator::text)::text
    FROM pg_aggregate g WHERE g.aggfnoid = p.oid) END || ' ' || {_acl("p.proacl", "f", "p.proowner")}
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {OURS} AND {_free("pg_proc", "p.oid")}
"""
_TYPES = f"""
SELECT CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN 'domain' WHEN 'r' THEN 'range' ELSE 'type' END,
  format('%I.%I', n.nspname, t.typname), jsonb_strip_nulls(jsonb_build_object(
    'labels', (SELECT jsonb_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),
    'base', CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
    'default', t.typdefault, 'not null', nullif(t.typnotnull, false),
    'collation', CASE WHEN t.typcollation NOT IN (0, 100) THEN t.typcollation::regcollation::text END,
    'range of', (SELECT format('%s %s %s', r.rngsubtype::regtype, r.rngcanonical, r.rngsubdiff) FROM pg_range r
                 WHERE r.rngtypid = t.oid),
    'functions', CASE WHEN t.typtype = 'b' THEN format('%s %s %s', t.typinput, t.typoutput, t.typlen) END,
    'privileges', {_acl("t.typacl", "T", "t.typowner")}))::text
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype IN ('e', 'd', 'r', 'b') AND t.typelem = 0 AND {OURS} AND {_free("pg_type", "t.oid")}
"""
_SEQUENCE_OBJECTS = f"""
SELECT 'sequence', format('%I.%I', n.nspname, c.relname), jsonb_strip_nulls(jsonb_build_object(
    'type', s.seqtypid::regtype::text, 'start', s.seqstart, 'increment', s.seqincrement, 'least', s.seqmin,
    'most', s.seqmax, 'cache', s.seqcache, 'cycles', s.seqcycle, 'persistence', nullif(c.relpersistence, 'p'),
    'owned by', (SELECT format('%s.%I', d.refobjid::regclass, a.attname) FROM pg_depend d
                 JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                 WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                 AND d.refclassid = 'pg_class'::regclass LIMIT 1),
    'privileges', {_acl("c.relacl", "s", "c.relowner")}))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_sequence s ON s.seqrelid = c.oid
WHERE c.relpersistence <> 't' AND {OURS} AND {_free("pg_class", "c.oid")}
"""
_POLICIES = f"""
SELECT 'policy', format('%s.%I', p.polrelid::regclass, p.polname), jsonb_strip_nulls(jsonb_build_object(
    'command', p.polcmd, 'permissive', p.polpermissive,
    'for', CASE WHEN 0 = ANY (p.polroles) THEN 'public' ELSE 'roles' END,
    'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid)))::text
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {OURS}
"""
_SCHEMAS = f"""
SELECT 'schema', quote_ident(n.nspname), {_acl("n.nspacl", "n", "n.nspowner")} FROM pg_namespace n
WHERE {OURS} AND {_free("pg_namespace", "n.oid")}
"""
_EXTENSIONS = """
SELECT 'extension', quote_ident(e.extname), e.extversion || ' in ' || n.nspname
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
"""
_COMMENTS = """
SELECT 'comment on ' || i.type, i.identity, d.description
FROM pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) i
WHERE (d.objoid >= 16384 OR d.classoid IN ('pg_largeobject'::regclass, 'pg_namespace'::regclass))
AND (d.objoid >= 16384 OR d.classoid = 'pg_largeobject'::regclass OR i.identity = 'public')
AND i.schema !~ '^pg_temp' IS NOT FALSE
AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = d.classoid AND e.objid = d.objoid AND e.deptype = 'e')
"""
_LARGE_OBJECTS = f"""
SELECT 'privileges on large object', m.oid::text, {_acl("m.lomacl", "L", "m.lomowner")}
FROM pg_largeobject_metadata m WHERE m.lomacl IS NOT NULL
"""
_DEFAULT_PRIVILEGES = f"""
SELECT 'default privileges', concat_ws(' ', 'in', quote_ident(n.nspname), 'on', d.defaclobjtype::text),
  string_agg({_acl("d.defaclacl", "r", "d.defaclrole")}, '; ' ORDER BY d.defaclacl::text)
FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace GROUP BY n.nspname, d.defaclobjtype
"""
_STATISTICS = f"""
SELECT 'statistics', format('%I.%I', n.nspname, s.stxname), pg_get_statisticsobjdef(s.oid)
FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE {OURS}
AND {_free("pg_statistic_ext", "s.oid")}
"""
_OPERATORS = f"""
SELECT 'operator', o.oid::regoperator::text, format('%s %s %s %s %s %s %s', o.oprcode, o.oprcom::regoperator,
  o.oprnegate::regoperator, o.oprrest, o.oprjoin, o.oprcanhash, o.oprcanmerge)
FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE {OURS} AND {_free("pg_operator", "o.oid")}
"""
_OPERATOR_CLASSES = f"""
SELECT 'operator class', format('%I.%I using %I', n.nspname, c.opcname, m.amname), jsonb_build_object(
    'type', c.opcintype::regtype::text, 'default', c.opcdefault, 'key', c.opckeytype::regtype::text,
    'operators', (SELECT jsonb_agg(format('%s %s', o.amopstrategy, o.amopopr::regoperator)
                  ORDER BY o.amopstrategy, o.amopopr::regoperator::text)
                  FROM pg_amop o WHERE o.amopfamily = c.opcfamily),
    'functions', (SELECT jsonb_agg(format('%s %s', f.amprocnum, f.amproc::regprocedure)
                  ORDER BY f.amprocnum, f.amproc::regprocedure::text)
                  FROM pg_amproc f WHERE f.amprocfamily = c.opcfamily))::text
FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod JOIN pg_namespace n ON n.oid = c.opcnamespace
WHERE {OURS} AND {_free("pg_opclass", "c.oid")}
"""
_CASTS = f"""
SELECT 'cast', format('%s as %s', c.castsource::regtype, c.casttarget::regtype),
  format('%s %s %s', c.castfunc::regprocedure, c.castcontext, c.castmethod)
FROM pg_cast c WHERE c.oid >= 16384 AND {_free("pg_cast", "c.oid")}
"""
_COLLATIONS = f"""
SELECT 'collation', format('%I.%I', n.nspname, c.collname),
  (to_jsonb(c) - '{{oid,collnamespace,collowner,collversion}}'::text[])::text
FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE {OURS} AND {_free("pg_collation", "c.oid")}
"""
_CONVERSIONS = f"""
SELECT 'conversion', format('%I.%I', n.nspname, c.conname),
  (to_jsonb(c) - '{{oid,connamespace,conowner}}'::text[])::text
FROM pg_conversion c JOIN pg_namespace n ON n.oid = c.connamespace WHERE {OURS} AND {_free("pg_conversion", "c.oid")}
"""
_TEXT_SEARCH = f"""
SELECT 'text search configuration', format('%I.%I', n.nspname, c.cfgname),
  coalesce((SELECT string_agg(format('%s %s', m.maptokentype, m.mapdict::regdictionary), ', '
            ORDER BY m.maptokentype, m.mapseqno) FROM pg_ts_config_map m WHERE m.mapcfg = c.oid), '')
FROM pg_ts_config c JOIN pg_namespace n ON n.oid = c.cfgnamespace WHERE {OURS} AND {_free("pg_ts_config", "c.oid")}
UNION ALL
SELECT 'text search dictionary', format('%I.%I', n.nspname, d.dictname),
  format('%s %s', t.tmplname, d.dictinitoption)
FROM pg_ts_dict d JOIN pg_ts_template t ON t.oid = d.dicttemplate JOIN pg_namespace n ON n.oid = d.dictnamespace
WHERE {OURS} AND {_free("pg_ts_dict", "d.oid")}
"""
_PUBLICATIONS = f"""
SELECT 'publication', quote_ident(p.pubname), (to_jsonb(p) - '{{oid,pubowner}}'::text[] || jsonb_build_object(
    'tables', (SELECT jsonb_agg(format('%s %s %s', r.prrelid::regclass, r.prattrs, pg_get_expr(r.prqual, r.prrelid))
               ORDER BY r.prrelid::regclass::text) FROM pg_publication_rel r WHERE r.prpubid = p.oid),
    'schemas', (SELECT jsonb_agg(s.pnnspid::regnamespace::text ORDER BY s.pnnspid::regnamespace::text)
                FROM pg_publication_namespace s WHERE s.pnpubid = p.oid)))::text
FROM pg_publication p WHERE {_free("pg_publication", "p.oid")}
"""
_FOREIGN = f"""
SELECT 'foreign data wrapper', quote_ident(w.fdwname), format('%s %s %s %s', nullif(w.fdwhandler, 0)::regproc,
  nullif(w.fdwvalidator, 0)::regproc, w.fdwoptions, {_acl("w.fdwacl", "F", "w.fdwowner")})
FROM pg_foreign_data_wrapper w WHERE {_free("pg_foreign_data_wrapper", "w.oid")}
UNION ALL
SELECT 'server', quote_ident(s.srvname), format('%s %s %s %s %s', w.fdwname, s.srvtype, s.srvversion, s.srvoptions,
  {_acl("s.srvacl", "S", "s.srvowner")})
FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw WHERE {_free("pg_foreign_server", "s.oid")}
UNION ALL
SELECT 'user mappings', quote_ident(s.srvname), string_agg(encode(sha256(convert_to(u.umoptions::text, 'UTF8')), 'hex'),
  ' ' ORDER BY u.umoptions::text) FROM pg_user_mapping u JOIN pg_foreign_server s ON s.oid = u.umserver GROUP BY 2
"""
_EVENT_TRIGGERS = f"""
SELECT 'event trigger', quote_ident(e.evtname),
  format('%s %s %s %s', e.evtevent, e.evtfoid::regproc, e.evtenabled, e.evttags)
FROM pg_event_trigger e WHERE {_free("pg_event_trigger", "e.oid")}
"""
QUERIES = (
    _SCHEMAS,
    _EXTENSIONS,
    _RELATIONS,
    _COLUMNS,
    _CONSTRAINTS,
    _INDEXES,
    _RULES,
    _TRIGGERS,
    _FUNCTIONS,
    _TYPES,
    _SEQUENCE_OBJECTS,
    _POLICIES,
    _COMMENTS,
    _LARGE_OBJECTS,
    _DEFAULT_PRIVILEGES,
    _STATISTICS,
    _OPERATORS,
    _OPERATOR_CLASSES,
    _CASTS,
    _COLLATIONS,
    _CONVERSIONS,
    _TEXT_SEARCH,
    _PUBLICATIONS,
    _FOREIGN,
    _EVENT_TRIGGERS,
)
"""Each gives kind, name, definition. They run where names are printed with their schema (``search_path`` is empty)."""
