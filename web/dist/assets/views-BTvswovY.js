const e=[{id:"/snapshots",label:"List"},{id:"/lineage",label:"Lineage"}];export{e as v};
