BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0015');
CREATE TABLE assays (
	build TEXT NOT NULL, 
	library TEXT NOT NULL, 
	safety TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	CONSTRAINT pk_assays PRIMARY KEY (build)
)
 WITHOUT ROWID

;
INSERT INTO "assays" VALUES('build-1','/lib/libsycl.so.8','safe','it ran',1777896000123456);
CREATE TABLE attributions (
	run_id INTEGER NOT NULL, 
	entry_id INTEGER NOT NULL, 
	created BOOLEAN NOT NULL, 
	CONSTRAINT pk_attributions PRIMARY KEY (run_id, entry_id), 
	CONSTRAINT fk_attributions_entry_id FOREIGN KEY(entry_id) REFERENCES entries (id) ON DELETE CASCADE, 
	CONSTRAINT fk_attributions_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "attributions" VALUES(1,1,1);
INSERT INTO "attributions" VALUES(1,2,0);
CREATE TABLE builds (
	kind TEXT NOT NULL, 
	root TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	platform TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	stamp TEXT NOT NULL, 
	image_size BIGINT NOT NULL, 
	seconds FLOAT NOT NULL, 
	digest TEXT NOT NULL, 
	at BIGINT NOT NULL, models JSON, 
	CONSTRAINT pk_builds PRIMARY KEY (kind, root, "key")
)
 WITHOUT ROWID

;
INSERT INTO "builds" VALUES('sycl','/var/cache/one','b580/dev/1/b/0','Level-Zero','rebuilt','two',500,3.5,'digest-b580/dev/1/b/0',1777896000123456,'["net"]');
CREATE TABLE change_environments (
	change_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	appeared BOOLEAN NOT NULL, 
	CONSTRAINT pk_change_environments PRIMARY KEY (change_id, environment_id), 
	CONSTRAINT fk_change_environments_change_id FOREIGN KEY(change_id) REFERENCES changes (id) ON DELETE CASCADE, 
	CONSTRAINT fk_change_environments_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
)
 WITHOUT ROWID

;
INSERT INTO "change_environments" VALUES(1,1,0);
INSERT INTO "change_environments" VALUES(1,3,1);
CREATE TABLE changes (
	id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	stamp TEXT NOT NULL, 
	CONSTRAINT pk_changes PRIMARY KEY (id)
);
INSERT INTO "changes" VALUES(1,1777899600123456,'two');
CREATE TABLE departed (
	kind TEXT NOT NULL, 
	root TEXT NOT NULL, 
	leaf TEXT NOT NULL, 
	source TEXT NOT NULL, 
	trusted TEXT NOT NULL, 
	first_seen BIGINT NOT NULL, 
	run_used BIGINT, 
	cost FLOAT, 
	restored BIGINT, 
	witnessed BIGINT, 
	hits INTEGER, 
	program TEXT, 
	at BIGINT NOT NULL, 
	runs TEXT NOT NULL, 
	models TEXT NOT NULL, 
	CONSTRAINT pk_departed PRIMARY KEY (kind, root, leaf, source)
)
 WITHOUT ROWID

;
CREATE TABLE dependencies (
	run_id INTEGER NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_dependencies PRIMARY KEY (run_id), 
	CONSTRAINT fk_dependencies_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "dependencies" VALUES(1,'[["program", "/opt/app/app.py", 100, 1, 2, 3, "abc", "", false]]');
CREATE TABLE entries (
	id INTEGER NOT NULL, 
	store_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	ref TEXT NOT NULL, 
	stamp TEXT NOT NULL, 
	state TEXT NOT NULL, 
	flaw TEXT, 
	size BIGINT NOT NULL, 
	allocated BIGINT NOT NULL, 
	created BIGINT NOT NULL, 
	accessed BIGINT, 
	first_seen BIGINT NOT NULL, 
	run_used BIGINT, 
	environment_id INTEGER, 
	origin TEXT, 
	options TEXT NOT NULL, 
	constants TEXT NOT NULL, 
	image TEXT, 
	image_size BIGINT NOT NULL, 
	binary TEXT, 
	digest TEXT, 
	trusted TEXT, 
	detail TEXT NOT NULL, 
	kernels TEXT NOT NULL, 
	kernel_names TEXT NOT NULL, cost FLOAT, restored BIGINT, witnessed BIGINT, hits INTEGER, program TEXT, last_used BIGINT GENERATED ALWAYS AS (max(created, coalesce(accessed, created), coalesce(run_used, created), coalesce(restored, created), coalesce(witnessed, created))) VIRTUAL, place BIGINT, 
	CONSTRAINT pk_entries PRIMARY KEY (id), 
	CONSTRAINT fk_entries_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_entries_store_id FOREIGN KEY(store_id) REFERENCES stores (id) ON DELETE CASCADE, 
	CONSTRAINT uq_entries_store_id_key UNIQUE (store_id, "key")
);
INSERT INTO "entries" VALUES(1,1,'b580/dev/1/a/0','e1e1cb3795c7','stamp-b580/dev/1/a/0','ok',NULL,1000,4096,1777860000123456,NULL,1777896000123456,1777899600123456,1,'declared','','','spirv',500,NULL,'digest-b580/dev/1/a/0','digest-b580/dev/1/a/0','','[["_ZTS4gemm","gemm",null],["softmax",null,"libtorch"]]','_ZTS4gemm
gemm
softmax',10.0,NULL,1777896000123456,3,'python',NULL);
INSERT INTO "entries" VALUES(2,1,'b580/dev/1/b/0','836e1847d21b','stamp-b580/dev/1/b/0','ok',NULL,1000,4096,1777860000123456,1777892400123456,1777896000123456,1777899600123456,1,'declared','','',NULL,0,NULL,'digest-b580/dev/1/b/0','digest-b580/dev/1/b/0','','[]','',NULL,1777899600123456,NULL,NULL,NULL,NULL);
INSERT INTO "entries" VALUES(3,1,'b580/dev/1/c/0','ee64864b4046','stamp-b580/dev/1/c/0','flawed','bin-empty',1000,4096,1777860000123456,NULL,1777896000123456,NULL,1,'declared','','',NULL,0,NULL,'digest-b580/dev/1/c/0',NULL,'empty','[]','',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "entries" VALUES(4,1,'b580/dev/1/d/0','19f3ead95700','stamp-b580/dev/1/d/0','unfinished','interrupted',1000,4096,1777860000123456,NULL,1777896000123456,NULL,1,'declared','','',NULL,0,NULL,'digest-b580/dev/1/d/0',NULL,'','[]','',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "entries" VALUES(5,1,'cpu/x/1/e/0','3a16f24cafce','stamp-cpu/x/1/e/0','ok',NULL,1000,4096,1777860000123456,NULL,1777896000123456,NULL,2,'declared','','',NULL,0,NULL,'digest-cpu/x/1/e/0','digest-cpu/x/1/e/0','','[]','',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "entries" VALUES(6,2,'b580/dev/1/z/0','52cab6c416d8','stamp-b580/dev/1/z/0','ok',NULL,1000,4096,1777860000123456,NULL,1777896000123456,NULL,1,'declared','','',NULL,0,NULL,'digest-b580/dev/1/z/0','digest-b580/dev/1/z/0','','[]','',NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	fingerprint TEXT NOT NULL, 
	platform TEXT NOT NULL, 
	device TEXT NOT NULL, 
	version TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	architecture TEXT, 
	first BIGINT, 
	last BIGINT, 
	present BOOLEAN NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT uq_environments_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "environments" VALUES(1,'57d6bdc81aaeaf8f','Level-Zero','Intel(R) Arc(TM) B580 Graphics','20.1.0','1.6.31','bmg-g21',1777888800123456,1777899600123456,0);
INSERT INTO "environments" VALUES(2,'e630a6c49e89f636','OpenCL','100%_CPU','OpenCL 3.0','2025.20','bmg-g21',1777888800123456,1777899600123456,1);
INSERT INTO "environments" VALUES(3,'8d166dd67b05a085','Level-Zero','Intel(R) Arc(TM) B580 Graphics','20.1.0','1.6.40','bmg-g21',1777899600123456,1777899600123456,1);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at BIGINT NOT NULL, 
	topic TEXT NOT NULL, 
	message TEXT NOT NULL, 
	fields JSON NOT NULL
);
INSERT INTO "events" VALUES(1,1777896000123456,'runtime-assayed','was assayed','{"build": "b"}');
CREATE TABLE figures (
	store_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	flaw TEXT NOT NULL, 
	entries INTEGER NOT NULL, 
	size FLOAT NOT NULL, 
	allocated FLOAT NOT NULL, 
	CONSTRAINT pk_figures PRIMARY KEY (store_id, environment_id, state, flaw), 
	CONSTRAINT fk_figures_store_id FOREIGN KEY(store_id) REFERENCES stores (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "figures" VALUES(1,1,'flawed','bin-empty',1,1000.0,4096.0);
INSERT INTO "figures" VALUES(1,1,'ok','',2,2000.0,8192.0);
INSERT INTO "figures" VALUES(1,1,'unfinished','interrupted',1,1000.0,4096.0);
INSERT INTO "figures" VALUES(1,2,'ok','',1,1000.0,4096.0);
INSERT INTO "figures" VALUES(2,1,'ok','',1,1000.0,4096.0);
CREATE TABLE host (
	id INTEGER NOT NULL, 
	surveyed BIGINT NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_host PRIMARY KEY (id)
);
INSERT INTO "host" VALUES(1,1777899600123456,'{"surveyed": "2026-05-04T13:00:00.123456+00:00", "boot": "boot", "kernel": "6.12", "stamp": "two", "devices": [{"name": "B580", "architecture": "bmg-g21", "pci_address": "0000:03:00.0", "pci_id": "0xe20b", "kernel_driver": null, "kernel_driver_version": null, "render_node": null, "environments": [["Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.40"], ["OpenCL", "100%_CPU", "OpenCL 3.0", "2025.20"]]}], "driver": [{"path": "/lib/a.so", "target": "/lib/a.so.1", "version": "1.6.31", "size": 10, "modified": "2026-05-04T12:00:00.123456+00:00", "build_id": null, "package": "level-zero 1.6.31"}], "environments": [["Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.40"], ["OpenCL", "100%_CPU", "OpenCL 3.0", "2025.20"]], "problems": [["no-level-zero", "it is missing", "", ""]], "drivers": []}');
CREATE TABLE inherited (
	entry_id INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	CONSTRAINT pk_inherited PRIMARY KEY (entry_id, model), 
	CONSTRAINT fk_inherited_entry_id FOREIGN KEY(entry_id) REFERENCES entries (id) ON DELETE CASCADE, 
	CONSTRAINT fk_inherited_model FOREIGN KEY(model) REFERENCES models (name) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE intents (
	kind TEXT NOT NULL, 
	root TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	CONSTRAINT pk_intents PRIMARY KEY (kind, root, "key")
)
 WITHOUT ROWID

;
INSERT INTO "intents" VALUES('sycl','/var/cache/one','cpu/x/1/e/0',1777896000123456);
CREATE TABLE models (
	name TEXT NOT NULL, 
	command JSON NOT NULL, 
	directory TEXT NOT NULL, 
	variables JSON NOT NULL, 
	timeout FLOAT NOT NULL, 
	workload TEXT NOT NULL, 
	store TEXT, 
	priority INTEGER NOT NULL, 
	pinned BOOLEAN NOT NULL, 
	source TEXT NOT NULL, exercise JSON, "before" JSON, 
	CONSTRAINT pk_models PRIMARY KEY (name)
);
INSERT INTO "models" VALUES('net','["python3", "app.py"]','/opt/app','{"OMP_NUM_THREADS": "4"}',60.5,'d42fa4b8ddea1311','/opt/cache',70,1,'socket',NULL,NULL);
INSERT INTO "models" VALUES('trained','[]','/opt/app','{}',1.0,'61d5f8021b1562b8','/opt/cache',70,1,'socket','{"loader": "train", "python": "/p", "target": "a:b", "inputs": "", "compile": false, "steps": 5, "new_tokens": 16, "min_output_tokens": 1, "tolerance": 0.25, "device": "xpu", "precisions": ["int8", "float32"], "shapes": ["1x2"], "require_device": false, "caches": ["/c"], "memory": 5, "disk": null, "options": {"a": "b"}}',NULL);
INSERT INTO "models" VALUES('filed','["python3", "app.py"]','/opt/app','{"OMP_NUM_THREADS": "4"}',60.5,'d42fa4b8ddea1311','/opt/cache',70,1,'/etc/xpucached/models.d/filed.toml',NULL,NULL);
CREATE TABLE offers (
	driver TEXT NOT NULL, 
	environment_id INTEGER NOT NULL, 
	CONSTRAINT pk_offers PRIMARY KEY (driver, environment_id), 
	CONSTRAINT fk_offers_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "offers" VALUES('',1);
INSERT INTO "offers" VALUES('',2);
INSERT INTO "offers" VALUES('',3);
CREATE TABLE refusals (
	kind TEXT NOT NULL, 
	root TEXT NOT NULL, 
	tail TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	stamp TEXT NOT NULL, 
	message TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	CONSTRAINT pk_refusals PRIMARY KEY (kind, root, tail, fingerprint)
)
 WITHOUT ROWID

;
INSERT INTO "refusals" VALUES('sycl','/var/cache/one','1/c','8d166dd67b05a085','two','no such instruction',1777896000123456);
CREATE TABLE run_environments (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	CONSTRAINT pk_run_environments PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_run_environments_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_run_environments_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "run_environments" VALUES(1,0,1);
CREATE TABLE runs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	model TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	started BIGINT NOT NULL, 
	finished BIGINT, 
	outcome TEXT, 
	host TEXT NOT NULL, 
	passes JSON NOT NULL, 
	attributed INTEGER NOT NULL, 
	detail TEXT NOT NULL, 
	output TEXT NOT NULL, libraries JSON, 
	CONSTRAINT fk_runs_model FOREIGN KEY(model) REFERENCES models (name) ON DELETE CASCADE
);
INSERT INTO "runs" VALUES(1,'net','d42fa4b8ddea1311','never-run',1777896000123456,1777899600123456,'warmed','sig1','[{"seconds": 12.5, "cpu_seconds": 10.0, "peak_rss": 1000, "exit_status": 0, "created": 1, "used": 0}, {"seconds": 2.5, "cpu_seconds": 2.0, "peak_rss": 1000, "exit_status": 0, "created": 0, "used": 1}]',2,'fine','output of it',NULL);
INSERT INTO "runs" VALUES(2,'trained','61d5f8021b1562b8','never-run',1777896000123456,1777899600123456,'failed','sig1','[]',0,'it failed','',NULL);
CREATE TABLE stores (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	root TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	via TEXT NOT NULL, 
	state TEXT NOT NULL, 
	owner INTEGER, 
	foreign_files INTEGER NOT NULL, 
	scanned BIGINT NOT NULL, 
	notes JSON NOT NULL, thorough BIGINT, 
	CONSTRAINT pk_stores PRIMARY KEY (id), 
	CONSTRAINT uq_stores_kind_root UNIQUE (kind, root)
);
INSERT INTO "stores" VALUES(1,'sycl','/var/cache/one','found','default','ok',1000,0,1777896000123456,'[]',1777896000123456);
INSERT INTO "stores" VALUES(2,'sycl','/var/cache/two','found','default','ok',1000,0,1777896000123456,'[]',1777896000123456);
CREATE TABLE trials (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	device TEXT NOT NULL, 
	precision TEXT NOT NULL, 
	shape TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	ran_on TEXT NOT NULL, 
	seen_on TEXT NOT NULL, 
	evidence JSON NOT NULL, 
	passes JSON NOT NULL, 
	figures JSON NOT NULL, 
	detail TEXT NOT NULL, 
	output TEXT NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_trials_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "trials" VALUES(1,0,'xpu','int8','1x2','warmed','meant','B580','["it said so"]','[{"seconds": 2.5, "cpu_seconds": 2.0, "peak_rss": 1000, "exit_status": 0, "created": 0, "used": 1}]','[{"load_seconds": 1.5, "first_seconds": null, "steady_seconds": null, "first_token_seconds": null, "token_seconds": null, "token_seconds_p95": null, "tokens": null, "device_memory": null, "error": null}]','','');
CREATE INDEX ix_entries_ref ON entries (ref);
CREATE INDEX ix_runs_model_id ON runs (model, id);
CREATE INDEX ix_attributions_entry_id ON attributions (entry_id);
CREATE INDEX ix_entries_page ON entries (store_id, environment_id, state, flaw);
CREATE INDEX ix_entries_worth ON entries (environment_id, last_used, created, store_id, state, flaw, allocated, image_size, cost, restored, accessed, run_used, witnessed);
CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN INSERT INTO figures (store_id, environment_id, state, flaw, entries, size, allocated) VALUES (NEW.store_id, coalesce(NEW.environment_id, 0), NEW.state, coalesce(NEW.flaw, ''), 1, NEW.size, NEW.allocated) ON CONFLICT (store_id, environment_id, state, flaw) DO UPDATE SET entries = entries + 1, size = size + excluded.size, allocated = allocated + excluded.allocated; END;
CREATE TRIGGER entries_changed AFTER UPDATE OF environment_id, state, flaw, size, allocated ON entries BEGIN UPDATE figures SET entries = entries - 1, size = size - OLD.size, allocated = allocated - OLD.allocated WHERE store_id = OLD.store_id AND environment_id = coalesce(OLD.environment_id, 0) AND state = OLD.state AND flaw = coalesce(OLD.flaw, ''); INSERT INTO figures (store_id, environment_id, state, flaw, entries, size, allocated) VALUES (NEW.store_id, coalesce(NEW.environment_id, 0), NEW.state, coalesce(NEW.flaw, ''), 1, NEW.size, NEW.allocated) ON CONFLICT (store_id, environment_id, state, flaw) DO UPDATE SET entries = entries + 1, size = size + excluded.size, allocated = allocated + excluded.allocated; END;
CREATE TRIGGER entries_gone AFTER DELETE ON entries BEGIN UPDATE figures SET entries = entries - 1, size = size - OLD.size, allocated = allocated - OLD.allocated WHERE store_id = OLD.store_id AND environment_id = coalesce(OLD.environment_id, 0) AND state = OLD.state AND flaw = coalesce(OLD.flaw, ''); END;
CREATE INDEX ix_inherited_model ON inherited (model);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',2);
INSERT INTO "sqlite_sequence" VALUES('events',5);
COMMIT;