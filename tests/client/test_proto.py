from flush_lake import FlushLake
def test_it(flush_lake, stock):
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT DEFAULT 'x', l INT[], d DECIMAL(10,2), u UUID, j JSON, b BYTEA, ts TIMESTAMPTZ, t2 TIMESTAMP, tm TIME, dt DATE, f DOUBLE, ok BOOLEAN)")
    lake.run("INSERT INTO app.t (id, v, l, d, u, j, b, ts,t2,tm,dt,f,ok) VALUES (1, 'a', [1,2,NULL], 1.5, '00000000-0000-0000-0000-000000000001', '{\"a\": 1}', '\\xAA'::BLOB, '2025-01-01 00:00:00+00', '2025-01-01 00:00:00', '10:00:00', '2025-01-01', 'nan', true)")
    lake.run("CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT)")
    for u in ('ada','bob'): lake.run("INSERT INTO app.mine VALUES (1,'a'),(2,'b')", user=u)
    flush_lake.flush()
    print(flush_lake.sql("select * from lakefork.clean_snapshot"))
    for c,t,s in flush_lake.sql("select catalog_id, table_id, max(begin_snapshot) from ducklake_data_file group by 1,2"):
        print(c,t,s,flush_lake.sql("select lakefork.note_clean(%s,%s,%s)",c,t,s))
    print(flush_lake.sql("select column_id,min_value,max_value,contains_nan from ducklake_file_column_stats order by data_file_id, column_id"))
    for cat in ("main",None,"nix"):
      try:
        with stock(cat) as duck:
            print(cat, duck.execute("show all tables").fetchall())
            print(duck.execute("from ducklake_snapshots('lake')").fetchall())
            try: duck.execute("use lake"); print(duck.execute("show tables").fetchall())
            except Exception as e: print("use:", e)
            if cat=="main":
                q=duck.execute("from lake.app.t"); print([d[:2] for d in q.description]); print(q.fetchall())
                print(lake.rows("SELECT * FROM app.t"))
                print(duck.execute("from lake.app.mine order by all").fetchall())
                print(duck.execute("from lake.app.mine where _user_id='ada' order by all").fetchall())
                print(duck.execute("select count(*) from lake.app.mine").fetchall())
                for w in ("id=1","u='00000000-0000-0000-0000-000000000001'","ts='2025-01-01 00:00:00+00'","t2='2025-01-01 00:00:00'","tm='10:00'","dt='2025-01-01'","f>5","f='nan'","b='\\xAA'::blob","d=1.5","ok","not _deleted","l=[1,2,null]","v='a'","j='{\"a\": 1}'"):
                    print(w, duck.execute(f"select count(*) from lake.app.t where {w}").fetchall())
      except Exception as e: print("ERR",cat,e)
    assert 0
